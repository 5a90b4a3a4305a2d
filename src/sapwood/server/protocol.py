"""HTTP/1.1 connections with limits: how large a request's head may be, and how long a client may take.

Knows bytes and uvicorn's protocol, which it wraps; nothing of routes. Invariant: a connection holds at most `max_head_bytes` (and
one read) of an unfinished head, that for at most `head_timeout_s`, and an answer that nobody reads for at most `read_timeout_s`;
what is refused here is answered in the shape of `failures`.
"""

from __future__ import annotations

import asyncio
import logging
from functools import partial
from typing import Any

import httptools
from uvicorn import Config
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle
from uvicorn.server import ServerState

from sapwood.config.sections import ServerSection
from sapwood.errors import InvalidRequest
from sapwood.server.failures import HeadTooLarge, error_body_bytes
from sapwood.server.tls import tls_options

KEEP_ALIVE_S = 75
"""How long an idle connection stays open: longer than common clients keep one in their pool, so that they close it first."""
_REASONS = {400: b"Bad Request", 431: b"Request Header Fields Too Large"}

logger = logging.getLogger(__name__)


class LimitedConnection:
    """An asyncio protocol around uvicorn's: it stands between the parser and uvicorn, and between the transport and both."""

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
        *,
        settings: ServerSection,
    ) -> None:
        self._settings = settings
        self._inner = inner = HttpToolsProtocol(config, server_state, app_state, _loop)
        self.on_body = inner.on_body
        self.on_message_complete = inner.on_message_complete
        self.eof_received = inner.eof_received
        inner.parser = httptools.HttpRequestParser(self)  # it looks for our methods now
        inner.parser.set_dangerous_leniencies(lenient_data_after_close=True)  # as uvicorn does, for the last of a pipeline
        inner.send_400_response = self._refuse  # type: ignore[method-assign]
        inner._unsupported_upgrade_warning = lambda: None  # type: ignore[method-assign]
        self._cycles: list[RequestResponseCycle] = []
        self._num_parsed_bytes = self._num_raw_bytes = 0
        self._in_head = True
        self._head_began = False
        self._head_timer: asyncio.TimerHandle | None = None
        self._stall_timer: asyncio.TimerHandle | None = None

    # --------------------------------------------------------------------------------------- from the transport
    def connection_made(self, transport: asyncio.Transport) -> None:
        """A client has come."""
        self._inner.connection_made(transport)
        self._expect_head()

    def connection_lost(self, error: Exception | None) -> None:
        """It has gone; every request of a pipeline hears of it (uvicorn tells the youngest only)."""
        self._stop_timers()
        for cycle in self._cycles:
            cycle.disconnected = True
            cycle.message_event.set()
        self._inner.connection_lost(error)

    def data_received(self, data: bytes) -> None:
        """Parse. What lies wholly inside an unfinished head counts too, since the parser may not have told of any of it yet."""
        inner = self._inner
        if self._head_timer is None and (inner.cycle is None or inner.cycle.response_complete):
            self._expect_head()
        self._head_began = False
        inner.data_received(data)
        if self._in_head and not self._head_began and not inner.transport.is_closing():
            self._num_raw_bytes += len(data)
            if self._is_too_large:
                self._refuse("")

    def pause_writing(self) -> None:
        """The client does not read as fast as we write; one that stops reading altogether is given up."""
        self._stall_timer = self._inner.loop.call_later(self._settings.read_timeout_s, self._inner.transport.abort)
        self._inner.pause_writing()

    def resume_writing(self) -> None:
        """It reads."""
        if self._stall_timer is not None:
            self._stall_timer.cancel()
        self._inner.resume_writing()

    # -------------------------------------------------------------------------------------------- from the parser
    def on_message_begin(self) -> None:
        """The first byte of a request."""
        self._in_head = self._head_began = True
        self._num_parsed_bytes = self._num_raw_bytes = 0
        self._inner.on_message_begin()

    def on_url(self, url: bytes) -> None:
        """A part of its target."""
        self._count(len(url))
        self._inner.on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        """One header, or a trailer."""
        self._count(len(name) + len(value) + 4)
        self._inner.on_header(name, value)

    def on_headers_complete(self) -> None:
        """The head is whole: a request begins, or waits for those before it."""
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None
        self._in_head = False
        self._inner.on_headers_complete()
        self._cycles = [cycle for cycle in self._cycles if not cycle.response_complete]
        self._cycles.append(self._inner.cycle)

    # --------------------------------------------------------------------------------------------------- internals
    def _refuse(self, msg: str) -> None:
        """Answer what is no HTTP, or too much of it, and close."""
        error: InvalidRequest = InvalidRequest("this is not a valid HTTP/1.1 request; check its request line and headers")
        if self._is_too_large:
            error = HeadTooLarge(
                f"the request line and headers may have {self._settings.max_head_bytes} bytes; send fewer or shorter ones"
            )
        logger.debug("refused a connection's request: %s", error.message)
        body = error_body_bytes(error)
        self._inner.transport.write(
            b"HTTP/1.1 %d %s\r\ncontent-type: application/json\r\ncontent-length: %d\r\nconnection: close\r\n\r\n%s"
            % (error.status, _REASONS[error.status], len(body), body)
        )
        self._inner.transport.close()

    @property
    def _is_too_large(self) -> bool:
        """Whether the present head is; each count by itself is at most its length."""
        return max(self._num_parsed_bytes, self._num_raw_bytes) > self._settings.max_head_bytes

    def _count(self, num_bytes: int) -> None:
        self._num_parsed_bytes += num_bytes
        if self._is_too_large:
            raise ValueError("the head is too large")  # the parser reports it, and uvicorn calls `_refuse`

    def _expect_head(self) -> None:
        self._head_timer = self._inner.loop.call_later(self._settings.head_timeout_s, self._inner.transport.close)

    def _stop_timers(self) -> None:
        for timer in (self._head_timer, self._stall_timer):
            if timer is not None:
                timer.cancel()


def protocol_options(settings: ServerSection) -> dict[str, Any]:
    """What `uvicorn.Config` needs to speak like this."""
    speaker = partial(LimitedConnection, settings=settings)
    return {"http": speaker, "timeout_keep_alive": KEEP_ALIVE_S, **tls_options(settings.tls)}
