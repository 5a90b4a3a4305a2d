"""`/open_session` and `/close_session`, as SGLang defines them; `/generate` with `session_params` uses what they open."""

from __future__ import annotations

from typing import Annotated

import msgspec
from fastapi import APIRouter, Request, Response

from sapwood.errors import InvalidRequest
from sapwood.server.body import Decoder
from sapwood.server.context import ServerContext
from sapwood.server.sse import json_response

Name = Annotated[str, msgspec.Meta(min_length=1, max_length=256)]


class OpenFields(msgspec.Struct, kw_only=True):
    """The body of `/open_session`. `capacity_of_str_len` bounds the tokens of a turn's prompt; `timeout` in seconds, unused."""

    capacity_of_str_len: Annotated[int, msgspec.Meta(ge=1, le=2**31 - 1)]
    session_id: Name | None = None
    streaming: bool | None = None
    timeout: Annotated[float, msgspec.Meta(gt=0, le=1e7)] | None = None


class CloseFields(msgspec.Struct, kw_only=True):
    """The body of `/close_session`."""

    session_id: Name


_open_fields: Decoder[OpenFields] = Decoder(OpenFields)
_close_fields: Decoder[CloseFields] = Decoder(CloseFields)


def session_routes(context: ServerContext) -> APIRouter:
    """The router of this family."""
    router = APIRouter(tags=["native"])
    sessions = context.frontend.sessions

    async def open_session(request: Request) -> Response:
        fields = await context.body(request, _open_fields)
        if fields.streaming:
            raise InvalidRequest(
                "streaming sessions are not supported; every session keeps its KV, leave it out", param="streaming"
            )
        return json_response(sessions.open(fields.session_id, fields.capacity_of_str_len, fields.timeout))

    async def close_session(request: Request) -> Response:
        fields = await context.body(request, _close_fields)
        sessions.close(fields.session_id)
        return json_response({"success": True})

    for path, route, summary in (
        ("/open_session", open_session, "Begin a conversation that the server remembers"),
        ("/close_session", close_session, "Forget a conversation"),
    ):
        router.add_api_route(path, route, methods=["POST"], summary=summary)
        router.add_api_route(path, route, methods=["GET"], include_in_schema=False)
    return router
