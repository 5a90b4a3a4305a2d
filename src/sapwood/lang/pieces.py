"""A growing text, read piece by piece, by a thread or on an event loop.

Owns the reader's position; does not know who writes. Invariant: the pieces add up to the text, each comes once, and what failed
is raised after the last one.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from functools import partial

from sapwood.lang.signals import Signal

Read = Callable[[int], tuple[list[str], bool]]
"""(position) -> the pieces from there on, and whether there will be no more; called with the signal's lock held."""


class Pieces:
    """An iterable and an async iterable. `cancel` ends the program when the task that reads it is cancelled."""

    def __init__(self, signal: Signal, read: Read, cancel: Callable[[], None]) -> None:
        self._signal = signal
        self._read = read
        self._cancel = cancel

    def __iter__(self) -> Iterator[str]:
        position = 0
        while True:
            with self._signal:
                self._signal.wait_for(partial(self._has_news, position))
                news, is_over = self._read(position)
            yield from news
            position += len(news)
            if is_over and not news:
                return

    async def __aiter__(self) -> AsyncIterator[str]:
        position = 0
        while True:
            try:
                await self._signal.await_change(partial(self._has_news, position))
            except asyncio.CancelledError:
                await asyncio.to_thread(self._cancel)
                raise
            with self._signal:
                news, is_over = self._read(position)
            for piece in news:
                yield piece
            position += len(news)
            if is_over and not news:
                return

    def _has_news(self, position: int) -> bool:
        news, is_over = self._read(position)
        return bool(news) or is_over
