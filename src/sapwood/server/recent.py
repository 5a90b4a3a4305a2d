"""Which number the latest request of a client's id had, and what the worker knows of it.

Owns a bounded map; does not know whether a request still runs. Invariant: at most `capacity` ids, the latest ones.
"""

from __future__ import annotations

from typing import Any

from sapwood.messages.types import AskTimeline
from sapwood.server.questions import Questions

ANSWER_TIMEOUT_S = 10.0


class RecentRids:
    """Remembers numbers by rid, also after the end."""

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._numbers: dict[str, int] = {}

    def add(self, rid: str, number: int) -> None:
        """A request with this id was accepted."""
        self._numbers.pop(rid, None)
        self._numbers[rid] = number
        if len(self._numbers) > self._capacity:
            del self._numbers[next(iter(self._numbers))]

    async def timeline(self, rid: str, ask: int, questions: Questions) -> dict[str, Any] | None:
        """What the worker says has happened to the latest request with this id, in a question numbered `ask`; None when either
        side does not know it any more."""
        number = self._numbers.get(rid)
        if number is None:
            return None
        answer = await questions.ask(AskTimeline(ask, number), ANSWER_TIMEOUT_S)
        return {"rid": rid, "number": number, **answer.data} if answer.ok else None
