"""The parts that a program's text is made of, as plain values.

Owns the parts and `Expr`, a run of parts that can be added up; does not know who executes them. Invariant: a part is never
changed once it is made, so one expression may be appended to any number of states.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from sapwood.lang.choices import ChoiceMethod
from sapwood.lang.settings import GenSettings


@dataclass(frozen=True, slots=True)
class Text:
    """Text as it is."""

    text: str


@dataclass(frozen=True, slots=True)
class Gen:
    """What the model writes here, kept under `name`. `reasoning` names the format in which the model thinks aloud first."""

    name: str | None
    settings: GenSettings
    reasoning: str | None = None


@dataclass(frozen=True, slots=True)
class Select:
    """The best of `choices`, kept under `name`."""

    name: str | None
    choices: tuple[str, ...]
    method: ChoiceMethod


@dataclass(frozen=True, slots=True)
class RoleBegin:
    """The beginning of a message."""

    role: str


@dataclass(frozen=True, slots=True)
class RoleEnd:
    """The end of the message that `RoleBegin` began."""

    role: str


@dataclass(frozen=True, slots=True)
class ScopeBegin:
    """From here on text counts towards the variable `name`."""

    name: str


@dataclass(frozen=True, slots=True)
class ScopeEnd:
    """The variable `name` is complete."""

    name: str


@dataclass(frozen=True, slots=True)
class Media:
    """A picture or a film; no model that is served here can look at one."""

    kind: str
    source: object


@dataclass(frozen=True, slots=True)
class Assign:
    """The program gives a variable a value of its own."""

    name: str
    value: Any


@dataclass(frozen=True, slots=True, eq=False)
class Branch:
    """Here streams begin that share everything so far; whoever runs them knows their type."""

    streams: tuple[Any, ...]


Part = Text | Gen | Select | RoleBegin | RoleEnd | ScopeBegin | ScopeEnd | Media | Assign | Branch


@dataclass(frozen=True, slots=True)
class Expr:
    """Parts in order; texts and expressions add up with `+`."""

    parts: tuple[Part, ...] = field(default=())

    def __add__(self, other: object) -> Expr:
        return Expr(self.parts + as_expr(other).parts)

    def __radd__(self, other: object) -> Expr:
        return Expr(as_expr(other).parts + self.parts)


def as_expr(value: object) -> Expr:
    """An expression as it is, a text as one; raises TypeError for anything else."""
    if isinstance(value, Expr):
        return value
    if isinstance(value, str):
        return Expr((Text(value),)) if value else Expr()
    raise TypeError(
        f"a program's text is made of str and of what gen, select and the roles return, not of {type(value).__name__}"
    )
