"""What a scripted model says: answers that a test lays out, and the prompts that came.

Owns the answers and the record; knows no engine. Invariant: every request gets exactly one answer, decided when it starts; may be
used from any thread.
"""

from __future__ import annotations

import json
import re
import threading
from collections import deque
from typing import Any

DEFAULT_ANSWER = "This is a scripted answer."


class Script:
    """Answers by rule: first what `say` has queued, then the latest `when` whose pattern is in the prompt, then `default`."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.reset()

    def reset(self) -> None:
        """Forget everything."""
        with self._lock:
            self.default = DEFAULT_ANSWER
            self._queue: deque[str] = deque()
            self._rules: list[tuple[re.Pattern[str], str]] = []
            self._prompts: list[str] = []

    def say(self, *answers: str) -> None:
        """Answer the next requests with these texts, one each, in this order."""
        with self._lock:
            self._queue.extend(answers)

    def when(self, pattern: str, answer: str) -> None:
        """Answer every request in whose prompt the regular expression `pattern` is found."""
        with self._lock:
            self._rules.insert(0, (re.compile(pattern), answer))

    @staticmethod
    def call(name: str, **arguments: Any) -> str:
        """The text with which the model calls a tool; join several for parallel calls."""
        return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"

    @property
    def prompts(self) -> list[str]:
        """The prompts so far, as the model saw them: chats rendered by the template."""
        with self._lock:
            return list(self._prompts)

    def answer_to(self, prompt: str) -> str:
        """Decide, and record the prompt."""
        with self._lock:
            self._prompts.append(prompt)
            if self._queue:
                return self._queue.popleft()
            return next((answer for pattern, answer in self._rules if pattern.search(prompt)), self.default)
