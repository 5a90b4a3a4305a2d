"""A cache storage in memory for tests of scheduling, which answers when it pleases (and sometimes has lost a page)."""

from __future__ import annotations

import random
from collections import deque

import numpy as np
from numpy.typing import NDArray

from sapwood.core.transfer import Fetch, Probe, Store, TransferDone, TransferOrder


class SlowStorage:
    """Carries out orders between turns, in order, a random number at a time: until then their host pages are poisoned."""

    def __init__(self, seed: int, loss: float = 0.0) -> None:
        self.pages: dict[bytes, bytes] = {}
        self._chance = random.Random(seed)
        self._loss = loss
        self._orders: deque[TransferOrder] = deque()

    @property
    def is_busy(self) -> bool:
        return bool(self._orders)

    def submit(self, orders: list[TransferOrder], host_pages: NDArray[np.uint8]) -> None:
        for order in orders:
            if isinstance(order, Fetch):
                host_pages[order.host_pages] = 255  # nobody may look before it is done
        self._orders += orders

    def turn(self, host_pages: NDArray[np.uint8]) -> list[TransferDone]:
        num_done = self._chance.randrange(len(self._orders) + 1)
        return [self._carry_out(self._orders.popleft(), host_pages) for _ in range(num_done)]

    def _carry_out(self, order: TransferOrder, host_pages: NDArray[np.uint8]) -> TransferDone:
        match order:
            case Probe():
                known = [key in self.pages for key in order.keys]
                return TransferDone(order.ticket, (known + [False]).index(False))
            case Store():
                for key, page in zip(order.keys, order.host_pages, strict=True):
                    content = host_pages[page].tobytes()
                    assert self.pages.setdefault(key, content) == content, "one key names two contents"
                return TransferDone(order.ticket, len(order.keys))
            case Fetch():
                count = 0
                for key, page in zip(order.keys, order.host_pages, strict=True):
                    if self._chance.random() < self._loss:
                        break
                    host_pages[page] = np.frombuffer(self.pages[key], dtype=np.uint8)
                    count += 1
                return TransferDone(order.ticket, count)
