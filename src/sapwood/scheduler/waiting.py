"""The requests that wait, most senior first.

Owns the queue's order (priority, then age) and its size; does not know why one waits. Invariant: sorted by seniority, each
request once.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator

from sapwood.core.request import Request


def _seniority(request: Request) -> tuple[int, int]:
    return request.seniority


class WaitingQueue:
    """A sorted queue; a retracted request returns to the place that its age gives it."""

    def __init__(self) -> None:
        self._requests: list[Request] = []
        self.num_removed = 0

    def __len__(self) -> int:
        return len(self._requests)

    def __iter__(self) -> Iterator[Request]:
        return iter(self._requests)

    @property
    def first(self) -> Request:
        """The most senior request; the queue is not empty."""
        return self._requests[0]

    @property
    def is_level(self) -> bool:
        """Whether all but a first that is an elder are equally important; the queue is not empty."""
        first = self._requests[min(self.first.is_elder, len(self._requests) - 1)]
        return first.priority == self._requests[-1].priority

    def most_junior_unstarted(self) -> Request | None:
        """The request of lowest priority and least age that never ran."""
        return next((request for request in reversed(self._requests) if request.admitted_s is None), None)

    def promote_oldest(self) -> None:
        """Whoever has waited longest becomes an elder; the queue is not empty."""
        oldest = min(self._requests, key=lambda request: request.arrival)
        if not oldest.is_elder:
            self.remove(oldest)
            oldest.promote()
            self.add(oldest)

    def snapshot(self) -> list[Request]:
        """The requests in order, safe to walk while the queue changes."""
        return self._requests.copy()

    def add(self, request: Request) -> None:
        """File a request by seniority."""
        insort(self._requests, request, key=_seniority)

    def remove(self, request: Request) -> None:
        """Take a request that is known to wait off the queue."""
        index = bisect_left(self._requests, request.seniority, key=_seniority)
        if index == len(self._requests) or self._requests[index] is not request:
            raise RuntimeError(f"request {request.number} is not in the waiting queue; report this as a bug")
        del self._requests[index]
        self.num_removed += 1
