"""Carries out what the scheduler asks of the cache's storage, beside the loop.

Owns two threads, one that reads and one that writes, and a storage; does not decide. Invariant: every order is answered once,
whatever happens to the storage: what cannot be read is a miss, what cannot be written is not stored.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from sapwood.core.transfer import Fetch, Probe, Store, TransferDone, TransferOrder
from sapwood.kvcache.storage import Storage

TRANSFER_POLL_S = 0.0005
"""How often a loop looks for answers while it has nothing else to do."""

logger = logging.getLogger(__name__)


class Transfers(Protocol):
    """What the loop's ports talk to."""

    @property
    def is_busy(self) -> bool:
        """Whether an answer is still to come."""
        ...

    def submit(self, orders: list[TransferOrder]) -> None:
        """Begin these orders."""
        ...

    def collect(self) -> list[TransferDone]:
        """What is done since the last call."""
        ...

    def close(self) -> None:
        """Finish what is under way, and nothing more: who wants all to be done waits until nothing is busy."""
        ...


class NoTransfers:
    """Where there is no storage, there are no orders."""

    is_busy = False

    def submit(self, orders: list[TransferOrder]) -> None:
        """Nothing comes here."""

    def collect(self) -> list[TransferDone]:
        """Nothing is done."""
        return []

    def close(self) -> None:
        """Nothing to end."""


class StorageTransfers:
    """Moves pages between host pages (uint8 [pages, bytes]) and a storage."""

    def __init__(self, storage: Storage, host_pages: NDArray[np.uint8]) -> None:
        self._storage = storage
        self._pages = [memoryview(page) for page in host_pages]
        self._reader: Executor = ThreadPoolExecutor(1, "sapwood-cache-reader")
        self._writer: Executor = ThreadPoolExecutor(1, "sapwood-cache-writer")
        self._pending: deque[Future[TransferDone]] = deque()
        self._is_broken = False

    @property
    def is_busy(self) -> bool:
        """Whether an answer is still to come."""
        return bool(self._pending)

    def submit(self, orders: list[TransferOrder]) -> None:
        """Begin these orders."""
        for order in orders:
            self._pending.append(self._begin(order))

    def _begin(self, order: TransferOrder) -> Future[TransferDone]:
        executor = self._writer if isinstance(order, Store) else self._reader
        try:
            return executor.submit(self._carry_out, order)
        except RuntimeError:  # the interpreter ends, and its threads have ended
            never = Future[TransferDone]()
            never.set_result(TransferDone(order.ticket, 0))
            return never

    def collect(self) -> list[TransferDone]:
        """What is done since the last call; raises what a storage should not have raised."""
        done = [future.result() for future in self._pending if future.done()]
        if done:
            answered = {each.ticket for each in done}
            self._pending = deque(f for f in self._pending if not (f.done() and f.result().ticket in answered))
        return done

    def close(self) -> None:
        """Finish the orders under way, drop those that wait, then let go of the storage."""
        for executor in (self._reader, self._writer):
            executor.shutdown(cancel_futures=True)
        self._storage.close()

    def _carry_out(self, order: TransferOrder) -> TransferDone:
        count = 0
        try:
            for _ in self._pages_done(order):
                count += 1
            self._is_broken = False
        except OSError as error:
            if not self._is_broken:
                logger.warning("the cache storage fails (%s); what it holds is computed again", error)
            self._is_broken = True
        return TransferDone(order.ticket, count)

    def _pages_done(self, order: TransferOrder) -> Iterator[None]:
        match order:
            case Probe():
                yield from [None] * self._storage.count_leading(order.keys)
            case Fetch():
                for key, page in zip(order.keys, order.host_pages, strict=True):
                    if not self._storage.read(key, self._pages[page]):
                        return
                    yield
            case Store():
                for key, page in zip(order.keys, order.host_pages, strict=True):
                    self._storage.write(key, self._pages[page])
                    yield
