"""How answers travel: the one writer of streams (server-sent events or lines), and the one collector for whole answers.

Knows bytes, connections and streams; the dialects say what an event contains. Invariant: the status line is sent with the first
event, so an error before it has its real status; a client that goes away, whatever we wait for, frees its requests at once.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from sapwood.errors import Aborted, EngineFailed, SapwoodError
from sapwood.server.failures import error_response, openai_error
from sapwood.server.stream import Stream

DONE = b"data: [DONE]\n\n"
SSE = b"text/event-stream; charset=utf-8"
_encoder = msgspec.json.Encoder()

logger = logging.getLogger(__name__)


def event(body: Any) -> bytes:
    """One event: a single `data:` line with one JSON object, and a blank line."""
    return b"data: %b\n\n" % _encoder.encode(body)


def named_event(name: str, body: Any) -> bytes:
    """One event with a name in front, for dialects that have typed events."""
    return b"event: " + name.encode() + b"\n" + event(body)


def line(body: Any) -> bytes:
    """One line of newline-delimited JSON."""
    return _encoder.encode(body) + b"\n"


@dataclass(frozen=True, slots=True)
class Framing:
    """What a dialect's streams have around their events: the content type, an error in the middle, and the last words."""

    content_type: bytes
    encode_error: Callable[[SapwoodError], bytes]
    end: bytes

    @property
    def headers(self) -> list[tuple[bytes, bytes]]:
        """The response's headers."""
        return [(b"content-type", self.content_type), (b"cache-control", b"no-cache"), (b"x-accel-buffering", b"no")]


OPENAI_FRAMING = Framing(SSE, lambda error: event(openai_error(error)), DONE)


def json_response(body: Any, status: int = 200) -> Response:
    """A whole JSON answer."""
    return Response(_encoder.encode(body), status, media_type="application/json")


async def collect(stream: Stream, request: Request) -> None:
    """Read `stream` to its end (the records then hold everything); raises Aborted when the client goes away first."""
    reader = asyncio.ensure_future(_exhaust(stream))
    watcher = asyncio.ensure_future(_until_gone(request.receive))
    try:
        await asyncio.wait((reader, watcher), return_when=asyncio.FIRST_COMPLETED)
        if not reader.done():
            raise Aborted("the client went away")
        reader.result()
    finally:
        stream.close()
        await _cancel(reader, watcher)


class EventStream(Response):
    """A streamed answer: `events` yields encoded events of `stream`; the framing's end follows, also after an error."""

    def __init__(self, stream: Stream, events: AsyncIterator[bytes], framing: Framing = OPENAI_FRAMING) -> None:
        super().__init__()
        self._framing = framing
        self._stream = stream
        self._events = events

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        writer = asyncio.ensure_future(self._write(scope, receive, send))
        watcher = asyncio.ensure_future(_until_gone(receive))
        try:
            await asyncio.wait((writer, watcher), return_when=asyncio.FIRST_COMPLETED)
            if writer.done():
                writer.result()
        finally:
            self._stream.close()
            await _cancel(writer, watcher)

    async def _write(self, scope: Scope, receive: Receive, send: Send) -> None:
        started = False
        try:
            async for data in self._events:
                if not started:
                    started = True
                    await send({"type": "http.response.start", "status": 200, "headers": self._framing.headers})
                await send({"type": "http.response.body", "body": data, "more_body": True})
        except SapwoodError as error:
            if not started:
                await error_response(error, scope["path"])(scope, receive, send)
                return
            await send({"type": "http.response.body", "body": self._framing.encode_error(error), "more_body": True})
        except OSError:  # the connection broke under our hands: nobody is left to tell
            return
        except Exception:  # the process border: reported to the log and to the client
            if not started:
                raise
            logger.exception("a stream failed unexpectedly")
            failure = EngineFailed("the server failed to handle this request; its log has the details")
            await send({"type": "http.response.body", "body": self._framing.encode_error(failure), "more_body": True})
        if not started:
            await send({"type": "http.response.start", "status": 200, "headers": self._framing.headers})
        await send({"type": "http.response.body", "body": self._framing.end, "more_body": False})


async def _exhaust(stream: Stream) -> None:
    async for _ in stream:
        pass


async def _until_gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _cancel(*tasks: asyncio.Future[None]) -> None:
    for task in tasks:
        task.cancel()
    for task in tasks:
        with contextlib.suppress(asyncio.CancelledError):
            await task
