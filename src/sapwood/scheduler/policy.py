"""Scheduling policies: in which order waiting requests are tried.

Owns the registry of orders; does not admit. Invariant: higher priority goes before lower, and ties end in order of arrival, so
that an order depends on nothing but the requests, the prefix index, what runs, and a seed. Each costs O(n log n) in the queue.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from sapwood.core.request import Request
from sapwood.registry import Registry
from sapwood.scheduler.queue_view import QueueView

Policy = Callable[[list[Request], QueueView], list[Request]]
"""Orders the waiting requests, which come sorted by seniority (priority, then arrival)."""

policies: Registry[Policy] = Registry("schedule policy")


@policies.register("fcfs")
def first_come_first_served(waiting: list[Request], view: QueueView) -> list[Request]:
    """Priority, then arrival."""
    return waiting


@policies.register("priority")
def by_priority(waiting: list[Request], view: QueueView) -> list[Request]:
    """First come, first served with priority scheduling switched on (see `SchedulerOptions.honours_priority`)."""
    return waiting


@policies.register("lpm")
def longest_prefix_match(waiting: list[Request], view: QueueView) -> list[Request]:
    """The longest cached prefix first."""
    return _sorted(waiting, [-cached for cached in view.num_cached(waiting)])


@policies.register("dfs-weight")
def depth_first_by_weight(waiting: list[Request], view: QueueView) -> list[Request]:
    """A walk through the index's tree, into the branch under which most requests wait first, so that those which share a prefix
    run together; a branch's deepest requests come before those that end higher up."""
    forest, unmatched = _Forest(), list[Request]()
    for node, requests in view.by_node(waiting).items():
        if node is None:
            unmatched = requests
        else:
            forest.plant(node, requests)
    order = forest.walk() + unmatched
    if waiting[0].priority != waiting[-1].priority:
        order.sort(key=lambda request: -request.priority)
    return order


@policies.register("hrrn")
def highest_response_ratio_next(waiting: list[Request], view: QueueView) -> list[Request]:
    """The highest ratio of waiting plus service to service, both in tokens: what was computed meanwhile for others, and what the
    request itself may still need."""
    now = view.num_computed_tokens
    return _sorted(
        waiting,
        [
            (request.tokens_at_arrival - now) / (request.max_len - cached)
            for request, cached in zip(waiting, view.num_cached(waiting), strict=True)
        ],
    )


@policies.register("shortest-prefill-first")
def shortest_prefill_first(waiting: list[Request], view: QueueView) -> list[Request]:
    """The fewest tokens that must be computed before the next one comes out."""
    return _sorted(waiting, view.num_uncached(waiting))


@policies.register("lof")
def longest_output_first(waiting: list[Request], view: QueueView) -> list[Request]:
    """The longest allowed completion first."""
    return _sorted(waiting, [request.num_prompt - request.max_len for request in waiting])


@policies.register("random")
def at_random(waiting: list[Request], view: QueueView) -> list[Request]:
    """A new shuffle each time."""
    return _sorted(waiting, [view.random_key() for _ in waiting])


@policies.register("routing-key")
def by_routing_key(waiting: list[Request], view: QueueView) -> list[Request]:
    """Requests whose routing key is frequent among those that run first; arrival when none of them has one."""
    counts = view.running_keys()
    if not counts:
        return waiting
    return _sorted(waiting, [(-counts[request.routing_key], request.routing_key) for request in waiting])


def _sorted(waiting: list[Request], keys: Sequence[Any]) -> list[Request]:
    """By priority, then by key, then as they stand. Equal priorities, the usual case, cost nothing extra."""
    if waiting[0].priority != waiting[-1].priority:
        keys = [(-request.priority, key) for request, key in zip(waiting, keys, strict=True)]
    return [waiting[index] for index in sorted(range(len(waiting)), key=keys.__getitem__)]


class _Forest:
    """The part of the index's tree that lies above waiting requests; children in the order in which they were planted."""

    def __init__(self) -> None:
        self._ends: dict[Any, list[Request]] = {}
        self._children: dict[Any, list[Any]] = {}
        self._roots: list[Any] = []

    def plant(self, end: Any, requests: list[Request]) -> None:
        """Requests whose known prefix ends at node `end`. Its way to the root becomes known as far as it is not, so each node is
        entered once."""
        self._ends[end] = requests
        below, node = None, end
        while node is not None:
            is_known = node in self._children
            children = self._children.setdefault(node, [])
            if below is not None:
                children.append(below)
            if is_known:
                return
            below, node = node, getattr(node, "parent", None)
        self._roots.append(below)

    def walk(self) -> list[Request]:
        """All requests, the heaviest branch first, a node's own requests after those of its branches."""
        nodes: list[Any] = []
        stack = list(self._roots)
        while stack:
            nodes.append(stack.pop())
            stack.extend(self._children[nodes[-1]])
        weights: dict[Any, int] = {}
        for node in reversed(nodes):
            weights[node] = len(self._ends.get(node, ())) + sum(weights[child] for child in self._children[node])
        walk: list[Any] = []
        stack = sorted(self._roots, key=lambda node: -weights[node])
        while stack:  # the reverse of "a node, then its branches, lightest first"
            walk.append(stack.pop())
            stack.extend(sorted(self._children[walk[-1]], key=lambda node: -weights[node]))
        return [request for node in reversed(walk) for request in self._ends.get(node, ())]
