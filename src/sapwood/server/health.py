"""Whether the process lives, whether it takes requests, and whether a token comes out.

Knows the frontend's state; nothing of why. Invariant: `/health` and `/ready` cost nothing and need no key; `/health_generate`
runs a real request of one token.
"""

from __future__ import annotations

import asyncio
import uuid

from fastapi import APIRouter, Response

from sapwood.core.pooling import Pooling, Task
from sapwood.core.sampling import SamplingParams
from sapwood.errors import Unavailable
from sapwood.server.context import ServerContext
from sapwood.server.failures import as_error
from sapwood.server.limits import RETRY_AFTER_STARTING_S, ServingState
from sapwood.server.requests import GenerateRequest, PromptRequest
from sapwood.server.sse import json_response

PROBE_TIMEOUT_S = 20.0


def health_routes(context: ServerContext) -> APIRouter:
    """The router of this family."""
    router = APIRouter(tags=["health"])
    frontend = context.frontend

    async def health() -> Response:
        return _report(frontend.state, frontend.state.is_healthy)

    async def ready() -> Response:
        return _report(frontend.state, frontend.state is ServingState.READY)

    async def health_generate() -> Response:
        await _probe(context)
        return _report(frontend.state, True)

    router.add_api_route("/health", health, methods=["GET"], summary="Whether the server works")
    router.add_api_route("/ready", ready, methods=["GET"], summary="Whether the server takes requests now")
    router.add_api_route("/health_generate", health_generate, methods=["GET"], summary="Make one token, end to end")
    return router


def _report(state: ServingState, is_good: bool) -> Response:
    response = json_response({"status": state.value}, 200 if is_good else 503)
    if not is_good:
        response.headers["retry-after"] = str(int(RETRY_AFTER_STARTING_S))
    return response


async def _probe(context: ServerContext) -> None:
    is_text = context.frontend.limits.task is Task.GENERATE
    prompt = PromptRequest(
        rid=f"health-{uuid.uuid4().hex}",
        token_ids=[0],
        params=SamplingParams(max_new_tokens=int(is_text), temperature=0.0, ignore_eos=True),
        pooling=None if is_text else Pooling(),
        namespace="health",
    )
    stream = context.frontend.open(GenerateRequest((prompt,)))
    try:
        async with asyncio.timeout(PROBE_TIMEOUT_S):
            async for updates in stream:
                for update in updates:
                    if update.finish is not None and update.finish.kind in ("error", "abort"):
                        raise as_error(update.finish)
    except TimeoutError:
        raise Unavailable(
            f"no token came within {PROBE_TIMEOUT_S:.0f} s; the engine hangs or is very busy", retry_after_s=5.0
        ) from None
    finally:
        stream.close()
