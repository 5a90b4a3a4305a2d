"""Scheduling policies: in which order waiting requests are tried.

Owns the registry of orders; does not admit. Invariant: higher priority goes before lower, and ties end in order of arrival, so
that an order depends on nothing but the requests and the prefix index.
"""

from __future__ import annotations

from collections.abc import Callable

from sapwood.core.request import Request
from sapwood.registry import Registry

LPM_MAX_WAITING = 128

CountCached = Callable[[Request], int]
"""How many of a request's tokens the prefix index holds now; costs one walk of the index."""

Policy = Callable[[list[Request], CountCached], list[Request]]
"""Orders the waiting requests, which come sorted by seniority."""

policies: Registry[Policy] = Registry("schedule policy")


@policies.register("fcfs")
def first_come_first_served(waiting: list[Request], count_cached: CountCached) -> list[Request]:
    """Priority, then arrival."""
    return waiting


@policies.register("lpm")
def longest_prefix_match(waiting: list[Request], count_cached: CountCached) -> list[Request]:
    """Priority, then the longest cached prefix; a long queue falls back to arrival, since each look costs a walk."""
    if len(waiting) > LPM_MAX_WAITING:
        return waiting
    return sorted(waiting, key=lambda request: (-request.priority, -count_cached(request), request.arrival))
