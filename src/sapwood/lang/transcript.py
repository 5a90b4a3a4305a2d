"""What a stream has said so far: as runs of text for models that continue text, as messages for those that answer them.

Owns the text and the open message; does not know how text becomes ids. Invariant: a transcript only grows, and a copy shares
nothing with it that either can change.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from sapwood.errors import InvalidRequest
from sapwood.lang.roles import RoleMarks


@dataclass(frozen=True, slots=True)
class Run:
    """Text of one kind. `is_special`: control tokens that it spells count as such. `ids`: what a model wrote it as, where that is
    known of what it wrote (`is_generated`)."""

    text: str
    is_special: bool = False
    ids: tuple[int, ...] = ()
    is_generated: bool = False


@dataclass(frozen=True, slots=True)
class Prompt:
    """A transcript as a backend gets it. `partial` is what has been said of the open message of `role`."""

    runs: tuple[Run, ...]
    messages: tuple[dict[str, str], ...]
    role: str | None
    partial: str

    @property
    def text(self) -> str:
        """All of it."""
        return "".join(run.text for run in self.runs)

    def with_text(self, text: str) -> Prompt:
        """The prompt with `text` said after it."""
        if not text:
            return self
        return Prompt((*self.runs, Run(text, self.role is None)), self.messages, self.role, self.partial + text)

    def merged(self) -> list[Run]:
        """The runs, neighbours of one kind joined: what is tokenised as one. Runs with ids stay by themselves."""
        merged: list[Run] = []
        for run in self.runs:
            last = merged[-1] if merged else None
            if last is not None and not last.ids and not run.ids and last.is_special == run.is_special:
                merged[-1] = Run(last.text + run.text, last.is_special)
            elif run.text:
                merged.append(run)
        return merged


@dataclass(slots=True)
class Transcript:
    """A growing `Prompt`."""

    marks: RoleMarks
    runs: list[Run] = field(default_factory=list)
    messages: list[dict[str, str]] = field(default_factory=list)
    role: str | None = None
    _partial: list[str] = field(default_factory=list)
    _previous: str | None = None

    @property
    def text(self) -> str:
        """Everything said so far."""
        return "".join(run.text for run in self.runs)

    def copy(self) -> Transcript:
        """Another one that has said the same."""
        return Transcript(self.marks, list(self.runs), list(self.messages), self.role, list(self._partial), self._previous)

    def prompt(self) -> Prompt:
        """What there is now."""
        return Prompt(tuple(self.runs), tuple(self.messages), self.role, "".join(self._partial))

    def say(self, text: str, ids: tuple[int, ...] = (), *, is_generated: bool = False) -> None:
        """Add text of the program (outside messages it may spell control tokens), or text that a model wrote, as `ids`."""
        if text:
            self.runs.append(Run(text, self.role is None and not ids, ids, is_generated))
            self._partial.append(text)

    def begin(self, role: str) -> str:
        """Begin a message; returns what that adds to the text. Raises InvalidRequest inside another message."""
        if self.role is not None:
            raise InvalidRequest(f"a message of {role} begins inside one of {self.role}; end that first", param=role)
        self.role, self._partial = role, []
        return self._mark(self.marks.open(self._previous, role))

    def end(self, role: str, content: str | None = None) -> str:
        """End the open message, which said `content` (None: its text); returns what that adds to the text."""
        if self.role != role:
            raise InvalidRequest(f"a message of {role} ends, but the open one is of {self.role or 'nobody'}", param=role)
        self.messages.append({"role": role, "content": "".join(self._partial) if content is None else content})
        self.role, self._previous, self._partial = None, role, []
        return self._mark(self.marks.close(role))

    def all_messages(self) -> list[dict[str, str]]:
        """The messages, the open one included."""
        partial = [] if self.role is None else [{"role": self.role, "content": "".join(self._partial)}]
        return [*map(dict, self.messages), *partial]

    def _mark(self, text: str) -> str:
        if text:
            self.runs.append(Run(text, True))
        return text
