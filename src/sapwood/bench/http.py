"""A client for streamed completions: one POST per connection, the answer's server-sent events as they come.

Owns bytes on the wire; knows no load. It is made of asyncio's streams alone, so that a load generator on the server's own cores
takes little from what it measures. Invariant: what is not a complete 200 answer raises ConnectionError with the server's words.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator
from dataclasses import dataclass
from urllib.parse import urlsplit

from sapwood.errors import ConfigError

LINE_LIMIT = 1 << 20
ERROR_BYTES = 2000
DATA = b"data:"
DONE = b"[DONE]"


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where completions are asked for."""

    host: str
    port: int
    path: str
    is_secure: bool
    api_key: str | None = None


def endpoint(base_url: str, path: str = "/v1/completions", api_key: str | None = None) -> Endpoint:
    """The endpoint of a server such as http://127.0.0.1:30000; raises ConfigError for what is no such address."""
    parts = urlsplit(base_url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ConfigError(f"{base_url!r} is not the address of a server; give one such as http://127.0.0.1:30000")
    secure = parts.scheme == "https"
    prefix = parts.path.rstrip("/").removesuffix("/v1")
    return Endpoint(parts.hostname, parts.port or (443 if secure else 80), prefix + path, secure, api_key)


async def stream_events(target: Endpoint, body: bytes) -> AsyncIterator[bytes]:
    """The payloads of the answer's `data:` lines, without the final [DONE]; raises ConnectionError and OSError."""
    context = ssl.create_default_context() if target.is_secure else None
    reader, writer = await asyncio.open_connection(target.host, target.port, ssl=context, limit=LINE_LIMIT)
    try:
        writer.write(_head(target, len(body)) + body)
        await writer.drain()
        status, is_chunked = await _read_head(reader)
        if status != 200:
            raise ConnectionError(f"HTTP {status}: {(await reader.read(ERROR_BYTES)).decode(errors='replace').strip()}")
        rest, ended = b"", False
        async for piece in _pieces(reader, is_chunked):
            *lines, rest = (rest + piece).split(b"\n")
            for line in lines:
                payload = line[len(DATA) :].strip() if line.startswith(DATA) else b""
                ended = ended or payload == DONE
                if payload and payload != DONE:
                    yield payload
        if not ended:
            raise ConnectionError("the answer ended before its last event; see the server's log")
    finally:
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()


def _head(target: Endpoint, length: int) -> bytes:
    key = f"Authorization: Bearer {target.api_key}\r\n" if target.api_key else ""
    return (
        f"POST {target.path} HTTP/1.1\r\nHost: {target.host}:{target.port}\r\nContent-Type: application/json\r\n"
        f"Accept: text/event-stream\r\n{key}Connection: close\r\nContent-Length: {length}\r\n\r\n"
    ).encode()


async def _read_head(reader: asyncio.StreamReader) -> tuple[int, bool]:
    """The status, and whether the body is chunked."""
    try:
        first, *headers = (await reader.readuntil(b"\r\n\r\n")).split(b"\r\n")
        status = int(first.split()[1])
    except (asyncio.IncompleteReadError, asyncio.LimitOverrunError, ValueError, IndexError) as error:
        raise ConnectionError(f"the answer is not HTTP ({error}); is this the right port?") from None
    return status, any(h.lower().startswith(b"transfer-encoding:") and b"chunked" in h.lower() for h in headers)


async def _pieces(reader: asyncio.StreamReader, is_chunked: bool) -> AsyncIterator[bytes]:
    """The body as it comes; without chunks it ends with the connection."""
    try:
        while not is_chunked and (piece := await reader.read(LINE_LIMIT)):
            yield piece
        while is_chunked and (size := int((await reader.readline()).partition(b";")[0], 16)):
            yield await reader.readexactly(size)
            await reader.readline()
    except (asyncio.IncompleteReadError, ValueError) as error:
        raise ConnectionError(f"the answer broke off: {error}; see the server's log") from None
