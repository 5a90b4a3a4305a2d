"""The order of events in an OpenAI stream, whichever route it is.

Knows updates and usage; the routes' writers make the chunks. Invariant: content chunks, then one chunk with the finish reason for
each choice, then the usage if it was asked for; a stream that fails in between still tells the usage, before the error.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Protocol

from sapwood.errors import SapwoodError
from sapwood.server.failures import raise_failure
from sapwood.server.record import Update
from sapwood.server.stream import Stream


class ChunkWriter(Protocol):
    """Makes one stream's events."""

    def write(self, update: Update) -> list[bytes]:
        """The events for news of one choice; none while there is nothing to show."""
        ...

    def last(self) -> list[bytes]:
        """The events after the last choice has ended."""
        ...


async def chunk_events(stream: Stream, writer: ChunkWriter) -> AsyncIterator[bytes]:
    """The encoded events of a stream; one write for all news of a moment. What fails before the first one is only raised."""
    has_begun = False
    async for updates in stream:
        events: list[bytes] = []
        try:
            for update in updates:
                if update.finish is not None:
                    raise_failure(update.finish)
                events += writer.write(update)
        except SapwoodError:
            if has_begun:
                yield b"".join([*events, *writer.last()])
            raise
        if events:
            yield b"".join(events)
            has_begun = True
    last = writer.last()
    if last:
        yield b"".join(last)
