"""How long a request may wait, and how long it may live.

Owns a heap of moments on the scheduler's clock; does not end requests. Invariant: a request whose deadline has passed is named by
the first `expired` call after it, once, unless it has ended or (for the queue's deadline) has been admitted.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Mapping
from math import inf

from sapwood.core.request import Request
from sapwood.errors import SapwoodError, TimedOut, Unavailable
from sapwood.scheduler.options import SchedulerOptions

COMPACT_SLACK = 1024


class Deadlines:
    """The deadlines of live requests: the shorter of what the options and what the request allow."""

    def __init__(self, options: SchedulerOptions) -> None:
        self._queue_timeout_s = options.queue_timeout_s or inf
        self._timeout_s = options.request_timeout_s or inf
        self._heap: list[tuple[float, int, int, bool, float]] = []

    def watch(self, request: Request, queue_timeout_s: float | None, timeout_s: float | None) -> None:
        """Count from the request's arrival; None sets no limit beyond the options'."""
        for is_queue, limit_s in (
            (True, min(self._queue_timeout_s, queue_timeout_s or inf)),
            (False, min(self._timeout_s, timeout_s or inf)),
        ):
            if limit_s < inf and not (is_queue and request.num_completion):  # a replay that had been admitted
                heapq.heappush(self._heap, (request.arrived_s + limit_s, request.arrival, request.number, is_queue, limit_s))

    def clear(self) -> None:
        """Every request was forgotten."""
        self._heap.clear()

    def is_due(self, now_s: float, live: Mapping[int, Request]) -> bool:
        """Whether `expired` has anything to do, be it to tidy up."""
        heap = self._heap
        return bool(heap) and (heap[0][0] <= now_s or len(heap) > 4 * len(live) + COMPACT_SLACK)

    def expired(self, now_s: float, live: Mapping[int, Request]) -> Iterator[tuple[Request, SapwoodError]]:
        """The live requests whose time is over, with what to tell their clients."""
        while self._heap and self._heap[0][0] <= now_s:
            _, _, number, is_queue, limit_s = heapq.heappop(self._heap)
            request = live.get(number)
            if request is None or (is_queue and request.admitted_s is not None):
                continue
            if is_queue:
                message = f"the request waited {limit_s:g} s and found no place; try again later"
                yield request, Unavailable(message, retry_after_s=1.0)
            else:
                yield request, TimedOut(f"the request did not end within {limit_s:g} s; ask for less, or allow more time")
        if len(self._heap) > 4 * len(live) + COMPACT_SLACK:
            self._heap = [entry for entry in self._heap if entry[2] in live]
            heapq.heapify(self._heap)
