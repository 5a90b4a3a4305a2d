"""The tiers below the KV store: which pages are saved to the host and when, which are loaded back, what goes to storage.

Owns the host tier, the moves that the next plan is to make and those in flight; does not know the tree. Invariant: a host
page has a user from the moment a plan is to touch it until that plan's step is confirmed (and, saved, until the storage has it).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from sapwood.core.plan import Int32Array
from sapwood.errors import ConfigError
from sapwood.kvcache.host_tier import HostTier
from sapwood.kvcache.keys import chained_keys
from sapwood.kvcache.prefetch import Prefetcher
from sapwood.kvcache.prefix import HostPage

WRITE_POLICIES = ("write_through", "write_through_selective", "write_back")
SAVE_AT_ONCE = 32
"""Pages in one plan, and in one order to storage, while the engine leaves: the deadline is missed by a few of them at most."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TierOptions:
    """`write_policy`: pages are saved when they are confirmed, when they are first reused, or when the KV store gives them up.
    `has_storage`: saved pages go on to storage, and requests that wait are looked for there as `prefetch` says."""

    write_policy: str = "write_through"
    has_storage: bool = False
    prefetch: str = "timeout"

    def __post_init__(self) -> None:
        if self.write_policy not in WRITE_POLICIES:
            raise ConfigError(f"unknown write policy {self.write_policy!r}; known: {', '.join(WRITE_POLICIES)}")


@dataclass(frozen=True, slots=True)
class Moves:
    """Host pages that the plan of `step` saves to and loads from."""

    step: int
    saved: list[HostPage]
    loaded: list[HostPage]


class Tiers:
    """What is below the KV store. Pages are named by chained keys."""

    def __init__(self, num_host_pages: int, page_bytes: int, options: TierOptions) -> None:
        self._host = HostTier(num_host_pages)
        self.storage = Prefetcher(self._host, options.prefetch)
        self._options = options
        self._page_bytes = page_bytes
        self._saves: list[tuple[int, HostPage]] = []
        self._loads: list[tuple[HostPage, int]] = []
        self._in_flight: deque[Moves] = deque()
        self._rest: deque[tuple[bytes, int]] | None = None
        self._leave_by_s = 0.0
        self.now_s = 0.0
        self.num_saved = 0
        self.num_loaded = 0
        self.num_unsaved = 0

    # ------------------------------------------------------------------------------------------------- what the index tells
    def on_stored(self, keys: Sequence[bytes], pages: Sequence[int]) -> None:
        """Confirmed pages entered the index."""
        if self._options.write_policy == "write_through":
            self._save(keys, pages)

    def on_found(self, keys: Sequence[bytes], pages: Sequence[int]) -> None:
        """A request found these pages in the index."""
        if self._options.write_policy == "write_through_selective":
            self._save(keys, pages)

    def on_evicted(self, keys: Sequence[bytes], pages: Sequence[int]) -> None:
        """The index gives these pages up; their content lasts until the next plan has saved it."""
        if self._options.write_policy == "write_back":
            self._save(keys, pages)

    def on_cleared(self) -> None:
        """The cache was flushed. What is in storage stays: it is named by content, and by the weights that made it."""
        self._host.clear()

    def _save(self, keys: Sequence[bytes], pages: Sequence[int]) -> None:
        if not self._host.num_pages:
            return
        for key, page in zip(keys, pages, strict=True):
            known = self._host.get(key)
            if known is not None:
                self._host.touch(known)
                continue
            entry = self._host.reserve(key)
            if entry is None:
                self.num_unsaved += 1
                continue
            self._host.enter(entry)
            self._saves.append((page, entry))

    # ------------------------------------------------------------------------------------------------- matching
    def follow(self, parent: bytes, run: bytes, start: int, *, touch: bool) -> list[HostPage]:
        """The host pages that continue a run whose page before `run[start:]` has the key `parent`."""
        found = []
        for key in chained_keys(parent, run, self._page_bytes, start):
            entry = self._host.get(key)
            if entry is None:
                break
            found.append(entry)
        if touch:
            for entry in reversed(found):
                self._host.touch(entry)
        return found

    def hold(self, entries: Iterable[HostPage]) -> None:
        """These pages are about to be loaded: they stay until then."""
        for entry in entries:
            self._host.hold(entry)

    def let_go(self, entries: Sequence[HostPage]) -> None:
        """Held pages are not to be loaded after all."""
        for entry in reversed(entries):
            self._host.release(entry)

    # ------------------------------------------------------------------------------------------------- moving
    def load(self, entries: Sequence[HostPage], pages: Sequence[int]) -> int:
        """Load held host pages into pages of the KV store with the next plan; returns how many of them came from storage."""
        self._loads += zip(entries, pages, strict=True)
        num_new = sum(entry.is_new for entry in entries)
        for entry in entries:
            entry.is_new = False
        return num_new

    @property
    def has_moves(self) -> bool:
        """Whether the next plan has to move pages."""
        return bool(self._saves or self._loads)

    def take_moves(self, step: int) -> tuple[Int32Array, Int32Array]:
        """`StepPlan.saves` and `StepPlan.loads` of the plan of `step`."""
        saves = np.array([(page, entry.page) for page, entry in self._saves], dtype=np.int32).reshape(-1, 2)
        loads = np.array([(entry.page, page) for entry, page in self._loads], dtype=np.int32).reshape(-1, 2)
        self._in_flight.append(Moves(step, [entry for _, entry in self._saves], [entry for entry, _ in self._loads]))
        self.num_saved += len(saves)
        self.num_loaded += len(loads)
        self._saves, self._loads = [], []
        return saves, loads

    def settle(self, confirmed_step: int) -> None:
        """Steps up to this one are confirmed: what they loaded is no longer in use, what they saved may go to storage."""
        while self._in_flight and self._in_flight[0].step <= confirmed_step:
            moves = self._in_flight.popleft()
            self.let_go(moves.loaded)
            if self._options.has_storage and moves.saved:
                self.storage.store(moves.saved)
                continue
            self.let_go(moves.saved)

    # ------------------------------------------------------------------------------------------------- storage
    def seek(self, number: int, parent: bytes, run: bytes, start: int) -> None:
        """Look in storage for the pages of a request's `run[start:]`, which follow what memory holds of it."""
        if self._options.has_storage:
            found = self.follow(parent, run, start, touch=True)
            start += len(found) * self._page_bytes
            keys = list(chained_keys(found[-1].key if found else parent, run, self._page_bytes, start))
            self.storage.seek(number, keys, self.now_s)

    def is_awaited(self, number: int) -> bool:
        """Whether request `number` should wait a little longer for pages from storage."""
        return self.storage.is_waiting(number, self.now_s)

    # ------------------------------------------------------------------------------------------------- leaving
    def leave(self, named_pages: Callable[[], Iterable[tuple[bytes, int]]], leave_by_s: float) -> None:
        """The engine ends: save a few more of the pages that storage may lack (asked for once: from now on they do not change).

        Under selective write-through a page that was not used again is not worth storing.
        """
        if not self._options.has_storage:
            return
        if self._rest is None:
            self._rest = deque(named_pages() if self._options.write_policy != "write_through_selective" else ())
        self._leave_by_s = leave_by_s
        while self._rest and self.is_leaving and len(self._saves) < SAVE_AT_ONCE and self.storage.num_storing < 2:
            key, page = self._rest.popleft()
            entry = None if self._host.get(key) else self._host.reserve(key)
            if entry is not None:
                self._host.enter(entry)
                self._saves.append((page, entry))
            elif self._host.get(key) is None:  # every host page is on its way to storage
                self._rest.appendleft((key, page))
                return

    @property
    def is_leaving(self) -> bool:
        """Whether `leave` has begun, still brings pages to storage and may go on."""
        if self._rest is None or self.now_s >= self._leave_by_s:
            return False
        return bool(self._rest or self._saves or self._in_flight or self.storage.num_storing)

    # ------------------------------------------------------------------------------------------------- audit
    @property
    def counts(self) -> dict[str, int]:
        """Gauges and running totals, by the names of `StepStats`."""
        return {
            "num_host_pages": self._host.num_pages,
            "num_host_cached_pages": self._host.num_held,
            "saved_pages_total": self.num_saved,
            "unsaved_pages_total": self.num_unsaved,
            "loaded_pages_total": self.num_loaded,
            "fetched_pages_total": self.storage.num_fetched,
            "stored_pages_total": self.storage.num_stored,
        }

    def violations(self) -> list[str]:
        """What is wrong with the host pages."""
        return self._host.violations()
