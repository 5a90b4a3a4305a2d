"""The order of events in an OpenAI stream, whichever route it is.

Knows updates and usage; the routes' writers make the chunks. Invariant: content chunks, then one chunk with the finish reason for
each choice, then the usage if it was asked for.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Protocol

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
    """The encoded events of a stream; one write for all news of a moment."""
    async for updates in stream:
        events: list[bytes] = []
        for update in updates:
            raise_failure(update.record.finish)
            events += writer.write(update)
        if events:
            yield b"".join(events)
    last = writer.last()
    if last:
        yield b"".join(last)
