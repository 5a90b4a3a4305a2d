"""Routes that change what everybody sees: flush the cache, abort requests. They ask for the admin key when one is set."""

from __future__ import annotations

from fastapi import APIRouter, Depends, Request, Response

from sapwood.errors import InvalidRequest
from sapwood.server.auth import admin_check
from sapwood.server.body import Decoder
from sapwood.server.context import ServerContext
from sapwood.server.failures import RouteNotFound
from sapwood.server.keys import read_keys
from sapwood.server.native.schema import AbortFields
from sapwood.server.sse import json_response

MAX_FLUSH_WAIT_S = 3600.0
_abort_fields: Decoder[AbortFields] = Decoder(AbortFields)


def admin_routes(context: ServerContext) -> APIRouter:
    """The router of this family."""
    guard = admin_check(read_keys(context.settings))
    router = APIRouter(tags=["admin"], dependencies=[Depends(guard)])

    async def flush_cache(request: Request) -> Response:
        await context.frontend.wait_idle(_seconds(request.query_params.get("timeout", "0")))
        answer = await context.frontend.flush_cache()
        if not answer.ok:
            raise InvalidRequest(answer.message or "the cache is in use; flush it when nothing runs or waits")
        return json_response({"success": True, "message": answer.message or "the prefix cache is empty"})

    async def abort_request(request: Request) -> Response:
        fields = await context.body(request, _abort_fields)
        if not fields.rid and not fields.abort_all:
            raise InvalidRequest("send the rid of the requests to abort, or abort_all", param="rid")
        prefix = "" if fields.abort_all else fields.rid or ""
        count = context.frontend.abort(prefix, fields.abort_message or "aborted by an operator")
        return json_response({"success": True, "num_aborted": count})

    async def timeline(rid: str) -> Response:
        found = await context.frontend.timeline(rid)
        if found is None:
            known = context.settings.request_timelines
            raise RouteNotFound(f"request {rid[:200]!r} is not among the latest {known}; --request-timelines keeps more")
        return json_response(found)

    router.add_api_route("/debug/requests/{rid:path}", timeline, methods=["GET"], summary="What has happened to a request")
    router.add_api_route("/flush_cache", flush_cache, methods=["POST"], summary="Empty the prefix cache")
    router.add_api_route("/flush_cache", flush_cache, methods=["GET"], include_in_schema=False)
    router.add_api_route("/abort_request", abort_request, methods=["POST"], summary="End requests by the beginning of their rid")
    return router


def _seconds(text: str) -> float:
    """How long to wait for an idle server before flushing."""
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 0.0 <= seconds <= MAX_FLUSH_WAIT_S:  # NaN fails too
        raise InvalidRequest(f"timeout must be a number of seconds from 0 to {MAX_FLUSH_WAIT_S:.0f}", param="timeout")
    return seconds
