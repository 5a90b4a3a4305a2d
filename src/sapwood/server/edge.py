"""The outermost layer of the application: a request id on every response, and no exception past it.

Knows ASGI alone. Invariant: an unexpected exception is logged with its request id and becomes a 500 that says nothing of it (or
closes the connection, if the response had begun); whatever goes wrong, the server lives on.
"""

from __future__ import annotations

import logging
import re
import uuid

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from sapwood.errors import EngineFailed
from sapwood.observability.metrics import Metrics, NullMetrics
from sapwood.observability.requests import CURRENT_CALL, Call
from sapwood.server.failures import ANTHROPIC_PATH, error_response

REQUEST_ID, ANTHROPIC_ID = "x-request-id", b"request-id"
TRACE_PARENT = b"traceparent"
_LEGAL_ID = re.compile(rb"[\x21-\x7e]{1,128}")

logger = logging.getLogger(__name__)


class Edge:
    """ASGI middleware around everything else."""

    def __init__(self, app: ASGIApp, metrics: Metrics | NullMetrics) -> None:
        self._app = app
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        if scope["method"] == "HEAD":  # answered as GET; the HTTP server leaves the body out
            scope = {**scope, "method": "GET"}
        request_id = _request_id(scope)
        CURRENT_CALL.set(Call(request_id.decode(), _trace_parent(scope)))
        names = (REQUEST_ID.encode(), *((ANTHROPIC_ID,) if scope["path"].startswith(ANTHROPIC_PATH) else ()))
        started = False

        async def send_marked(message: Message) -> None:
            nonlocal started
            if message["type"] == "http.response.start":
                started = True
                self._metrics.observe_response(message["status"])
                message["headers"] = [*message.get("headers", ()), *((name, request_id) for name in names)]
            await send(message)

        try:
            await self._app(scope, receive, send_marked)
        except Exception:  # the process border: reported to the log and to the client
            logger.exception("request %s: %s %s failed unexpectedly", request_id.decode(), scope["method"], scope["path"])
            if started:
                raise
            failure = EngineFailed("the server failed to handle this request; its log has the details")
            await error_response(failure, scope["path"])(scope, receive, send_marked)


def _request_id(scope: Scope) -> bytes:
    """The client's id if it is fit to be sent back, else a new one."""
    given = dict(scope["headers"]).get(REQUEST_ID.encode(), b"")
    return given if _LEGAL_ID.fullmatch(given) else uuid.uuid4().hex.encode()


def _trace_parent(scope: Scope) -> str:
    """The client's trace context, as far as it can be one; who reads it checks it."""
    given = dict(scope["headers"]).get(TRACE_PARENT, b"")
    return given.decode() if _LEGAL_ID.fullmatch(given) else ""
