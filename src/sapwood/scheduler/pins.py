"""Pinned prefixes: runs that stay in the cache although nobody uses them, because a session will come back to them.

Owns one path of the prefix index per name, and when it ends; does not know sessions. Invariant: pins hold at most half of
each pool, the oldest give way first, and all of them give way before a request is held back or retracted for want of pages.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from sapwood.kvcache.prefix import PrefixIndex
from sapwood.scheduler.window import Windows


@dataclass(frozen=True, slots=True)
class Pin:
    """A locked path of `num_pages` pages (those shared with other pins included), and those whose window its end sees."""

    handle: Any
    num_pages: int
    deadline_s: float
    window_pages: list[int]


class Pins:
    """Paths by name, the one that was renewed longest ago first."""

    def __init__(self, index: PrefixIndex[Any], window: Windows, num_pages: int) -> None:
        self._index = index
        self._window = window
        self._max_pages = num_pages // 2
        self._pins: OrderedDict[str, Pin] = OrderedDict()
        self._num_pages = 0
        self._num_window_pages = 0
        self._next_deadline_s = float("inf")

    def __len__(self) -> int:
        return len(self._pins)

    @property
    def num_pages(self) -> int:
        """Pages on pinned paths; those on several count for each."""
        return self._num_pages

    @property
    def handles(self) -> list[Any]:
        """The paths, for audits."""
        return [pin.handle for pin in self._pins.values()]

    @property
    def window_pages(self) -> list[list[int]]:
        """What the pins see, for audits."""
        return [pin.window_pages for pin in self._pins.values()]

    def put(self, name: str, pin: Pin) -> None:
        """Take over the lock on a path, instead of what the name held; a path that is too long is let go of."""
        self.drop([name])
        self._pins[name] = pin
        self._num_pages += pin.num_pages
        self._num_window_pages += len(pin.window_pages)
        self._next_deadline_s = min(self._next_deadline_s, pin.deadline_s)
        while self._num_pages > self._max_pages or self._num_window_pages > self._window.num_pages // 2:
            self.drop_oldest()

    def drop(self, names: Iterable[str]) -> None:
        """Unpin these names, those that are pinned."""
        for name in names:
            pin = self._pins.pop(name, None)
            if pin is not None:
                self._num_pages -= pin.num_pages
                self._num_window_pages -= len(pin.window_pages)
                self._window.unpin(pin.window_pages)
                self._index.unlock(pin.handle)

    def drop_oldest(self) -> bool:
        """Unpin what was pinned longest ago; False when nothing is."""
        name = next(iter(self._pins), None)
        if name is None:
            return False
        self.drop([name])
        return True

    def expire(self, now_s: float) -> None:
        """Unpin what has passed its time."""
        if now_s < self._next_deadline_s:
            return
        self.drop([name for name, pin in self._pins.items() if pin.deadline_s <= now_s])
        self._next_deadline_s = min((pin.deadline_s for pin in self._pins.values()), default=float("inf"))

    def clear(self) -> None:
        """Unpin everything."""
        self.drop(list(self._pins))
