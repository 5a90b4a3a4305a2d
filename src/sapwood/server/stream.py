"""The updates of one call, for one reader.

Owns which samples have news; does not know the dialect. Invariant: news that come while the reader is busy are merged into one
update per sample, the reader is woken at most once per step, and `close` ends whatever is unfinished.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from sapwood.server.record import RecordState, RequestRecord, Update


class Stream:
    """An async iterator over lists of updates (all news of a moment); it ends after every sample's finish was delivered."""

    def __init__(self, abandon: Callable[[list[RequestRecord]], None], interval: int = 1) -> None:
        self.records: list[RequestRecord] = []
        self._abandon = abandon
        self._interval = interval
        self._news: dict[int, RequestRecord] = {}
        self._wakeup: asyncio.Future[None] | None = None
        self._num_unfinished = 0

    def add(self, record: RequestRecord) -> None:
        """A further sample of this call."""
        self.records.append(record)
        self._num_unfinished += 1

    def notify(self, record: RequestRecord) -> None:
        """`record` has news; the reader is woken when there is enough of it."""
        if record.is_worth_an_update(self._interval):
            self._news[record.number] = record
            if self._wakeup is not None and not self._wakeup.done():
                self._wakeup.set_result(None)

    def close(self) -> None:
        """The reader goes away: unfinished samples are aborted. Harmless after the end."""
        unfinished = [record for record in self.records if record.state is not RecordState.CLOSED]
        if unfinished:
            self._abandon(unfinished)

    def __aiter__(self) -> Stream:
        return self

    async def __anext__(self) -> list[Update]:
        if not self._num_unfinished:
            raise StopAsyncIteration
        if not self._news:
            self._wakeup = asyncio.get_running_loop().create_future()
            await self._wakeup
        updates = []
        for record in self._news.values():
            updates.append(record.deliver())
            self._num_unfinished -= record.finish is not None
        self._news.clear()
        return updates
