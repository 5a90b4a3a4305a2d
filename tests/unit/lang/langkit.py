"""A backend that says what a test wants, when a test wants it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

from sapwood.errors import Aborted
from sapwood.lang.backends.base import Generation, Job, OnText
from sapwood.lang.choices import ChoiceScores
from sapwood.lang.roles import NAMED_MARKS, RoleMarks
from sapwood.lang.settings import GenSettings
from sapwood.lang.transcript import Prompt

Say = Callable[[Prompt, GenSettings], str]


@dataclass
class Call:
    """One generation that was asked for."""

    prompt: Prompt
    settings: GenSettings
    on_text: OnText | None
    future: Future[list[Generation]] = field(default_factory=Future)


class ScriptedBackend:
    """Answers with `say(prompt, settings)` at once, or with `holds` by `release`; an exception that it returns is raised."""

    takes_messages = False
    num_programs = 8
    marks: RoleMarks = NAMED_MARKS["default"]

    def __init__(self, say: Say = lambda prompt, settings: "x", *, holds: bool = False) -> None:
        self.say = say
        self.holds = holds
        self.calls: list[Call] = []
        self.cached: list[str] = []
        self.cancelled: list[Call] = []

    def generate(self, prompt: Prompt, settings: GenSettings, on_text: OnText | None) -> Job[list[Generation]]:
        call = Call(prompt, settings, on_text)
        self.calls.append(call)
        if not self.holds:
            self.release(call)
        return Job(call.future, lambda: self.cancel(call))

    def release(self, call: Call) -> None:
        """Answer."""
        answer: Any = self.say(call.prompt, call.settings)
        if isinstance(answer, Exception):
            call.future.set_exception(answer)
            return
        if call.on_text is not None:
            for letter in answer:
                call.on_text(letter)
        samples = [
            Generation(answer + "'" * index, meta={"finish_reason": {"type": "stop"}}) for index in range(call.settings.n or 1)
        ]
        call.future.set_result(samples)

    def cancel(self, call: Call) -> None:
        if not call.future.done():
            self.cancelled.append(call)
            call.future.set_exception(Aborted("cancelled"))

    def score(self, prompt: Prompt, choices: Sequence[str], unconditional: bool) -> Job[ChoiceScores]:
        """The shorter, the likelier."""
        future: Future[ChoiceScores] = Future()
        tokens: Any = [[(-float(len(choice)), 0, choice)] for choice in choices]
        future.set_result(ChoiceScores(tokens, [[-1.0] for _ in choices]))
        return Job(future)

    def cache_prefix(self, prompt: Prompt) -> None:
        self.cached.append(prompt.text)

    def flush_cache(self) -> bool:
        return True

    def get_server_info(self) -> dict[str, Any]:
        return {"version": "scripted"}


def count_up() -> Say:
    """Answers 1, 2, 3…, one for each call, in the order in which they are made."""
    numbers = iter(range(1, 1000))
    return lambda prompt, settings: str(next(numbers))
