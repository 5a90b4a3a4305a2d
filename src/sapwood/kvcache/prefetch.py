"""Brings pages from storage to the host tier while their request waits in the queue.

Owns the orders that are under way and how long a request waits for them; does not read anything itself. Invariant: a request
waits for at most one order, and no longer than the policy allows; a host page that is being read into is in use.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from sapwood.core.transfer import Fetch, Probe, Store, TransferDone, TransferOrder
from sapwood.errors import ConfigError
from sapwood.kvcache.host_tier import HostTier
from sapwood.kvcache.prefix import HostPage

PREFETCH_POLICIES = ("best_effort", "wait_complete", "timeout")
BASE_WAIT_S = 1.0
WAIT_PER_PAGE_S = 0.004
FOREVER_S = float("inf")


@dataclass(slots=True)
class Search:
    """What is under way for request `number`: first a probe for `keys`, then the reading of `entries`."""

    number: int
    keys: list[bytes]
    entries: list[HostPage] = field(default_factory=list)
    is_fetching: bool = False


class Prefetcher:
    """Talks to the storage by orders; see `core.transfer`."""

    def __init__(self, tier: HostTier, policy: str) -> None:
        if policy not in PREFETCH_POLICIES:
            raise ConfigError(f"unknown prefetch policy {policy!r}; known: {', '.join(PREFETCH_POLICIES)}")
        self._tier = tier
        self._policy = policy
        self._searches: dict[int, Search] = {}
        self._stores: dict[int, list[HostPage]] = {}
        self._deadlines: dict[int, float] = {}
        self._orders: list[TransferOrder] = []
        self._num_tickets = 0
        self.num_fetched = 0
        self.num_stored = 0

    def seek(self, number: int, keys: list[bytes], now_s: float) -> None:
        """A request has arrived whose pages `keys` no tier in memory holds: look for them."""
        if keys:
            self._searches[self._order(Probe, keys)] = Search(number, keys)
            self._deadlines[number] = now_s + self._patience_s(len(keys))

    def is_waiting(self, number: int, now_s: float) -> bool:
        """Whether a request should not be admitted yet, because pages for it are on their way."""
        deadline_s = self._deadlines.get(number)
        if deadline_s is None or now_s < deadline_s:
            return deadline_s is not None
        del self._deadlines[number]
        return False

    def forget(self, number: int) -> None:
        """The request is gone; what is under way for it is of use to others."""
        self._deadlines.pop(number, None)

    def store(self, entries: list[HostPage]) -> None:
        """Write host pages, which have a user each until that is done."""
        keys, pages = [entry.key for entry in entries], [entry.page for entry in entries]
        self._stores[self._order(Store, keys, pages)] = entries

    @property
    def num_storing(self) -> int:
        """Orders to write that are not answered yet."""
        return len(self._stores)

    def take_orders(self) -> list[TransferOrder]:
        """Orders given since the last call."""
        orders, self._orders = self._orders, []
        return orders

    def done(self, done: TransferDone) -> None:
        """The storage has answered."""
        if done.ticket in self._stores:
            for index, entry in enumerate(self._stores.pop(done.ticket)):
                entry.is_stored = index < done.count
                self._tier.release(entry)
            self.num_stored += done.count
            return
        search = self._searches.pop(done.ticket)
        if search.is_fetching:
            self._fetched(search, done.count)
        else:
            self._probed(search, done.count)

    def _probed(self, search: Search, count: int) -> None:
        """Read what is there, as far as host pages can be had."""
        for key in search.keys[:count]:
            if self._tier.get(key) is None:
                entry = self._tier.reserve(key)
                if entry is None:
                    break
                search.entries.append(entry)
        if not search.entries:
            self.forget(search.number)
            return
        keys, pages = [entry.key for entry in search.entries], [entry.page for entry in search.entries]
        search.is_fetching = True
        self._searches[self._order(Fetch, keys, pages)] = search

    def _fetched(self, search: Search, count: int) -> None:
        for entry in search.entries[:count]:
            entry.is_stored = entry.is_new = True
            self._tier.enter(entry)
        for entry in reversed(search.entries):  # so that a run's end is forgotten before its beginning
            self._tier.release(entry)
        self.num_fetched += count
        self.forget(search.number)

    def _order(self, kind: type[Probe | Fetch | Store], *what: list[bytes] | list[int]) -> int:
        self._num_tickets += 1
        self._orders.append(kind(self._num_tickets, *what))  # type: ignore[arg-type]
        return self._num_tickets

    def _patience_s(self, num_pages: int) -> float:
        if self._policy == "best_effort":
            return 0.0
        return FOREVER_S if self._policy == "wait_complete" else BASE_WAIT_S + WAIT_PER_PAGE_S * num_pages
