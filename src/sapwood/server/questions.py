"""Questions to the worker that have one answer each.

Owns the waiting callers; does not know what the answers mean. Invariant: every caller gets the answer, or Unavailable after its
deadline or when the worker is gone; an answer that nobody waits for any more is dropped.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from sapwood.errors import Unavailable
from sapwood.messages.types import Answer, Ask, AskTimeline, Flush, Renew

Question = Ask | AskTimeline | Flush | Renew


class Questions:
    """The questions of one frontend. `send` takes a message to the worker and may raise Overloaded."""

    def __init__(self, send: Callable[[Question], None]) -> None:
        self._send = send
        self._waiting: dict[int, asyncio.Future[Answer]] = {}

    async def ask(self, question: Question, timeout_s: float | None) -> Answer:
        """Send `question` and wait for its answer; for ever if `timeout_s` is None."""
        future: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self._waiting[question.ask] = future
        try:
            self._send(question)
            async with asyncio.timeout(timeout_s):
                return await future
        except TimeoutError:
            raise Unavailable(f"the worker did not answer within {timeout_s:.0f} s; try again", retry_after_s=1.0) from None
        finally:
            del self._waiting[question.ask]

    def take(self, answer: Answer) -> None:
        """An answer arrived."""
        future = self._waiting.get(answer.ask)
        if future is not None and not future.done():
            future.set_result(answer)

    def fail_all(self, reason: str) -> None:
        """No answer to what was asked so far will come any more."""
        for future in self._waiting.values():
            if not future.done():
                future.set_exception(Unavailable(reason, retry_after_s=1.0))
