"""In which order the waiting requests are tried in this step.

Owns the latest order and how often it is used; what a good order is, policies know. Invariant: an order is used again only while
nobody who waits, but for an elder, is more important than another, and some of its requests still wait; whoever came since is in
the next one.
"""

from __future__ import annotations

from sapwood.core.request import Request
from sapwood.scheduler.policy import Policy
from sapwood.scheduler.queue_view import QueueView
from sapwood.scheduler.waiting import WaitingQueue

REQUESTS_PER_USE = 512
"""An order of n requests serves n // so many further steps: sorting a long queue costs more than a step's few admissions gain."""


class Ranking:
    """One policy's order of one queue."""

    def __init__(self, policy: Policy, queue: WaitingQueue, view: QueueView) -> None:
        self._policy = policy
        self._queue = queue
        self._view = view
        self._order: list[Request] = []
        self._num_uses_left = 0
        self._renew_when_removed = 0

    def order(self) -> list[Request]:
        """Requests to try, first one first; those that do not wait any more are to be passed over, and an elder may be named
        twice. The queue is not empty."""
        queue = self._queue
        if self._num_uses_left > 0 and queue.num_removed < self._renew_when_removed and queue.is_level:
            self._num_uses_left -= 1
            return [queue.first, *self._order] if queue.first.is_elder else self._order
        waiting = queue.snapshot()
        self._order = self._policy(waiting, self._view)
        self._num_uses_left = 0 if self._order is waiting else len(waiting) // REQUESTS_PER_USE
        self._renew_when_removed = queue.num_removed + (len(waiting) + 1) // 2
        return self._order
