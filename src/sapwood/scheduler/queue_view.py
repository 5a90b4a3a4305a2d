"""What a scheduling policy may know besides the waiting requests themselves.

Owns what the prefix index said when each waiting request was last looked up, and the policies' random numbers; does not order.
Invariant: one call does at most `MAX_LOOKS` look-ups, those never looked up first, then those whose answer is oldest (of a queue
longer than that, `MAX_REFRESHED` of them); so a short queue is judged by the index as it is, and a long one costs no more.
"""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

from sapwood.core.request import Request, RequestState
from sapwood.kvcache.prefix import Match
from sapwood.scheduler.progress import Progress

MAX_LOOKS = 128
MAX_REFRESHED = 32


@dataclass(frozen=True, slots=True)
class Look:
    """What the index held of a request: `num_tokens` whole-page tokens, on a path that ends at `node` (None: nothing)."""

    request: Request
    num_tokens: int
    node: Any


class QueueView:
    """One scheduler's. `match` looks a request up without touching it, `running` lists the running requests."""

    def __init__(
        self,
        match: Callable[[Request], Match[Any]],
        running: Callable[[], Iterable[Request]],
        page_size: int,
        progress: Progress,
        seed: int = 0,
    ) -> None:
        self._match = match
        self._running = running
        self._page_size = page_size
        self._progress = progress
        self._chance = random.Random(seed)
        self._looks: dict[int, Look] = {}

    def looks(self, waiting: Sequence[Request]) -> Mapping[int, Look]:
        """By number, what is known of the waiting requests; a number that is not in it was not looked up yet."""
        if len(self._looks) > 2 * len(waiting) + MAX_LOOKS:
            self._looks = {number: look for number, look in self._looks.items() if look.request.state is RequestState.WAITING}
        due = list(islice((request for request in waiting if request.number not in self._looks), MAX_LOOKS))
        num_refreshed = min(MAX_LOOKS - len(due), MAX_LOOKS if len(waiting) <= MAX_LOOKS else MAX_REFRESHED)
        due += [look.request for look in islice(self._looks.values(), num_refreshed)]
        for request in due:
            self._looks.pop(request.number, None)
            if request.state is RequestState.WAITING:
                match = self._match(request)
                self._looks[request.number] = Look(request, match.num_whole * self._page_size, match.node)
        return self._looks

    def num_cached(self, waiting: Sequence[Request]) -> list[int]:
        """How many tokens of each waiting request the index holds, as far as it was looked up."""
        looks = self.looks(waiting)
        return [look.num_tokens if (look := looks.get(request.number)) is not None else 0 for request in waiting]

    def num_uncached(self, waiting: Sequence[Request]) -> list[int]:
        """How many known tokens of each waiting request are still to be computed."""
        return [request.num_known - cached for request, cached in zip(waiting, self.num_cached(waiting), strict=True)]

    def by_node(self, waiting: Sequence[Request]) -> dict[Any, list[Request]]:
        """The waiting requests by the node where their known prefix ends (None: nothing is known), each node's in their order."""
        looks, groups = self.looks(waiting), defaultdict[Any, list[Request]](list)
        for request in waiting:
            look = looks.get(request.number)
            groups[look and look.node].append(request)
        return groups

    @property
    def num_computed_tokens(self) -> int:
        """How many tokens were computed since the start."""
        return self._progress.num_computed_tokens

    def running_keys(self) -> Counter[str]:
        """How many running requests have each routing key."""
        return Counter(request.routing_key for request in self._running() if request.routing_key)

    def random_key(self) -> float:
        """The next random number; every rank draws the same."""
        return self._chance.random()
