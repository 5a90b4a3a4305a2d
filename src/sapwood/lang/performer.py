"""What each part does to a stream: text that is said, generations that are asked for and taken, variables that are set.

Owns a stream's transcript and journal; does not know queues or who waits. Invariant: the journal changes under the run's signal
alone, and the transcript only between the end of one part and the beginning of the next.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from sapwood.errors import InvalidRequest
from sapwood.lang.backends.base import Backend, Generation, Job
from sapwood.lang.choices import ChoiceScores
from sapwood.lang.ir import Assign, Gen, Media, Part, RoleBegin, RoleEnd, ScopeBegin, ScopeEnd, Select, Text
from sapwood.lang.journal import Journal
from sapwood.lang.reasoning import split_reasoning
from sapwood.lang.settings import GenSettings
from sapwood.lang.signals import Signal
from sapwood.lang.speculation import Ahead
from sapwood.lang.transcript import Prompt, Transcript

REASONING_SUFFIX = "_reasoning_content"


@dataclass(frozen=True, slots=True, eq=False)
class RunSettings:
    """How a program is run: on what, with which settings where it says none, and whether each token's text is told as it
    comes."""

    backend: Backend
    defaults: GenSettings
    is_streamed: bool = False
    num_spec_tokens: int | None = None


class Performer:
    """One stream's. `perform` begins a part; when that needs a job, `take` is given the job's result."""

    def __init__(self, settings: RunSettings, signal: Signal) -> None:
        self.transcript = Transcript(settings.backend.marks)
        self.journal = Journal()
        self._settings = settings
        self._signal = signal
        self._ahead = Ahead(settings.backend.takes_messages)
        self._answers: dict[str, str] = {}

    def copy(self) -> Performer:
        """The performer of a stream that goes on from here."""
        other = Performer(self._settings, self._signal)
        other.transcript, other.journal, other._answers = self.transcript.copy(), self.journal.copy(), dict(self._answers)
        return other

    def perform(self, part: Part) -> Job[Any] | None:
        """Do it, or begin to; raises what is wrong with it."""
        match part:
            case Text(text):
                self._ahead.pass_over(text)
                self._say(text)
            case RoleBegin(role):
                self._ahead.drop()
                self._tell(self.transcript.begin(role))
            case RoleEnd(role):
                self._ahead.drop()
                self._tell(self.transcript.end(role, self._answers.get(self.transcript.prompt().partial)))
            case ScopeBegin(name):
                self.journal.begin_scope(name, len(self.transcript.text))
            case ScopeEnd(name):
                self._assign(name, self.transcript.text[self.journal.end_scope(name) :])
            case Assign(name, value):
                self._assign(name, value)
            case Media(kind):
                raise InvalidRequest(f"no model that is served here can look at a {kind}; leave {kind}(...) out", param=kind)
            case Gen():
                return self._generate(part)
            case Select(_, choices, method):
                return self._settings.backend.score(self.transcript.prompt(), choices, method.needs_unconditional)
        return None

    def take(self, part: Part, result: Any) -> None:
        """The job that `perform` began has ended with this."""
        if isinstance(part, Gen):
            samples: list[Generation] = result
            self._take_samples(part, samples if self._settings.num_spec_tokens is None else [self._cut(part, samples[0])])
        elif isinstance(part, Select):
            self._take_choice(part, result)

    def _generate(self, part: Gen) -> Job[list[Generation]] | None:
        settings = part.settings.over(self._settings.defaults)
        if self._settings.num_spec_tokens is None:
            on_text = self._listener(part.name) if self._settings.is_streamed else None
            return self._settings.backend.generate(self.transcript.prompt(), settings, on_text)
        taken = self._ahead.take(settings.stops)
        if taken is None:
            return self._speculate(settings, self._settings.num_spec_tokens)
        self._take_samples(part, [Generation(taken, meta={"speculated": True})])
        return None

    def _speculate(self, settings: GenSettings, num_tokens: int) -> Job[list[Generation]]:
        """Ask for more than this generation; `_cut` takes what belongs to it."""
        prompt = self.transcript.prompt()
        if self._settings.backend.takes_messages:
            prompt = Prompt(prompt.runs, prompt.messages, prompt.role, "")
        more = GenSettings(max_new_tokens=num_tokens).over(settings)
        more = GenSettings(**{name: value for name, value in more.given().items() if name not in ("stop", "n")})
        return self._settings.backend.generate(prompt, more, None)

    def _cut(self, part: Gen, sample: Generation) -> Generation:
        reason = sample.meta.get("finish_reason") or {}
        self._ahead.fill(sample.text, reason.get("type") != "length")
        partial = self.transcript.prompt().partial
        if self._settings.backend.takes_messages and partial:
            self._ahead.pass_over(partial)
        taken = self._ahead.take(part.settings.over(self._settings.defaults).stops)
        if taken is None:  # the end was not reached: what there is counts, and the next generation asks anew
            self._ahead.drop()
        return Generation(sample.text if taken is None else taken, meta=sample.meta)

    def _take_samples(self, part: Gen, samples: list[Generation]) -> None:
        texts, meta = [sample.text for sample in samples], [sample.meta for sample in samples]
        answers = [split_reasoning(text, part.reasoning) for text in texts] if part.reasoning else [("", text) for text in texts]
        if part.reasoning:
            self._answers[texts[0]] = answers[0][1]
        self.transcript.say(texts[0], samples[0].ids, is_generated=True)
        with self._signal:
            if not self._settings.is_streamed or self._settings.num_spec_tokens is not None:
                self.journal.tell(texts[0], part.name)
            if part.name is not None:
                if part.reasoning:
                    self.journal.set(part.name + REASONING_SUFFIX, _one_or_all([reasoning for reasoning, _ in answers]))
                self.journal.set(part.name, _one_or_all([answer for _, answer in answers]), _one_or_all(meta))
            self._signal.changed()

    def _take_choice(self, part: Select, scores: ChoiceScores) -> None:
        choice, meta = part.method.decide(part.choices, scores)
        self._ahead.drop()
        self._say(choice, part.name)
        if part.name is not None:
            self._assign(part.name, choice, meta)

    def _listener(self, name: str | None) -> Callable[[str], None]:
        def on_text(text: str) -> None:
            self._tell(text, name)

        return on_text

    def _say(self, text: str, name: str | None = None) -> None:
        self.transcript.say(text)
        self._tell(text, name)

    def _tell(self, text: str, name: str | None = None) -> None:
        if text:
            with self._signal:
                self.journal.tell(text, name)
                self._signal.changed()

    def _assign(self, name: str, value: Any, meta: Any = None) -> None:
        with self._signal:
            self.journal.set(name, value, meta)


def _one_or_all(values: list[Any]) -> Any:
    return values[0] if len(values) == 1 else values
