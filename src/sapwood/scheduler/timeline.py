"""What happened to each of the latest requests: queued, admitted, chunks, retractions, end.

Owns a bounded ring of timelines; decides nothing. Invariant: at most `capacity` timelines of at most `MAX_MOMENTS` moments each,
and nothing is noted per decoded token (a decode shows as the steps between the last chunk and the end).
"""

from __future__ import annotations

from typing import Any, Protocol

from sapwood.core.request import Request
from sapwood.scheduler.progress import Progress

MAX_MOMENTS = 512

Moment = tuple[float, int, str, int, int]
"""Seconds since arrival, step, what happened, tokens, pages."""


class TimelineLog(Protocol):
    """Where the scheduler's parts say what they did with a request."""

    def note(self, request: Request, what: str, num_tokens: int = 0, num_pages: int = 0) -> None:
        """One moment; its tokens are those cached at admission, computed by a chunk, or computed in all at the end."""
        ...

    def report(self, number: int) -> dict[str, Any] | None:
        """A request's timeline, ready to be encoded; None when it is not, or no longer, known."""
        ...


class Timelines:
    """Keeps the timelines of the latest requests."""

    def __init__(self, capacity: int, progress: Progress) -> None:
        self._capacity = capacity
        self._progress = progress
        self._requests: dict[int, tuple[Request, list[Moment]]] = {}

    def note(self, request: Request, what: str, num_tokens: int = 0, num_pages: int = 0) -> None:
        """One moment, now."""
        entry = self._requests.get(request.number)
        if entry is None:
            entry = self._requests[request.number] = (request, [])
            if len(self._requests) > self._capacity:
                del self._requests[next(iter(self._requests))]
        if len(entry[1]) < MAX_MOMENTS or request.state.is_terminal:
            at_s = self._progress.now_s - request.arrived_s
            entry[1].append((at_s, self._progress.num_steps + 1, what, num_tokens, num_pages))

    def report(self, number: int) -> dict[str, Any] | None:
        """The facts and the moments."""
        entry = self._requests.get(number)
        if entry is None:
            return None
        request, moments = entry
        names = ("at_s", "step", "what", "num_tokens", "num_pages")
        return {
            "state": request.state.value,
            "priority": request.asked_priority,
            "is_elder": request.is_elder,
            "num_prompt_tokens": request.num_prompt,
            "num_completion_tokens": request.num_completion,
            "num_cached_tokens": max(request.num_cached, 0),
            "num_computed_tokens": request.num_computed,
            "num_retractions": request.num_retractions,
            "queue_s": request.queue_s,
            "moments": [dict(zip(names, moment, strict=True)) for moment in moments],
        }


class NullTimelines:
    """The twin that notes nothing."""

    def note(self, request: Request, what: str, num_tokens: int = 0, num_pages: int = 0) -> None:
        """Nothing."""

    def report(self, number: int) -> dict[str, Any] | None:
        """Nothing is known."""
        return None
