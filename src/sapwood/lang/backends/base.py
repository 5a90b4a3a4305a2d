"""The seam between programs and whatever continues their text.

Owns the protocol and its values; knows no transport. Invariant: a job's future always ends, with a result or an error, and after
`cancel` soon; a backend may be used from any thread.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, Generic, Protocol, TypeVar

from sapwood.lang.choices import ChoiceScores
from sapwood.lang.roles import RoleMarks
from sapwood.lang.settings import GenSettings
from sapwood.lang.transcript import Prompt

T = TypeVar("T")
OnText = Callable[[str], None]
"""Told each piece of new text, in order, from any thread, before the job ends."""


@dataclass(frozen=True, slots=True)
class Generation:
    """One sample. `ids` are those that spell exactly `text`, where that is known; `meta` is SGLang's `meta_info`."""

    text: str
    ids: tuple[int, ...] = ()
    meta: dict[str, Any] = field(default_factory=dict)


def nothing() -> None:
    """Cancels what cannot be cancelled, or has ended."""


@dataclass(frozen=True, slots=True)
class Job(Generic[T]):
    """Work under way. `cancel` asks it to end; `future` then ends with Aborted, unless it was done already."""

    future: Future[T]
    cancel: Callable[[], None] = nothing


class Backend(Protocol):
    """What continues text.

    `takes_messages`: it answers whole messages and cannot continue a text. `num_programs`: how many programs are worth running at
    once. `marks` stand around messages.
    """

    @property
    def marks(self) -> RoleMarks: ...

    @property
    def takes_messages(self) -> bool: ...

    @property
    def num_programs(self) -> int: ...

    def generate(self, prompt: Prompt, settings: GenSettings, on_text: OnText | None) -> Job[list[Generation]]:
        """Continue the prompt, once for each of `settings.n`; `on_text` is told the text of the first as it comes."""
        ...

    def score(self, prompt: Prompt, choices: Sequence[str], unconditional: bool) -> Job[ChoiceScores]:
        """The log-probabilities of each choice as a continuation; raises InvalidRequest where that cannot be had."""
        ...

    def cache_prefix(self, prompt: Prompt) -> None:
        """Compute what many prompts will begin with, and return when that is done."""
        ...

    def flush_cache(self) -> bool:
        """Empty the prefix cache; False where there is none to empty."""
        ...

    def get_server_info(self) -> dict[str, Any]:
        """What the server says about itself."""
        ...


def failed(error: BaseException) -> Future[Any]:
    """A future that has failed already."""
    future: Future[Any] = Future()
    future.set_exception(error)
    return future
