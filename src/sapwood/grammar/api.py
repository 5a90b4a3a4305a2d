"""The seam between constraints and the library that matches them.

Owns the protocols and the registry of backends; knows no library. Invariant: a matcher never raises on what a client sent or a
model chose: it goes into an error state that says why.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from sapwood.config.sections import GrammarLimits
from sapwood.core.constraint import Constraint
from sapwood.core.plan import UInt32Array
from sapwood.registry import Registry


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """What a backend must know of a model: the bytes of each id, which ids are control tokens (`special_ids`) and which end a
    completion, the number of logits (`size`, at least the number of tokens), and how plain text is tokenised."""

    tokens: Sequence[bytes]
    special_ids: Sequence[int]
    eos_ids: Sequence[int]
    size: int
    encode: Callable[[str], list[int]]


@dataclass(frozen=True, slots=True)
class GrammarOptions:
    """How JSON is written: with `any_whitespace` as the model likes (within reason), else always as `{"a": 1, "b": 2}`.
    `control_ids`: the model's control tokens by their spelling, which structural tags may hold. `limits`: how much a constraint
    may take."""

    any_whitespace: bool = True
    control_ids: Mapping[str, int] = field(default_factory=dict)
    limits: GrammarLimits = GrammarLimits()


class Matcher(Protocol):
    """Where one completion is in its grammar."""

    @property
    def error(self) -> str:
        """Why the completion cannot go on under its grammar; "" while it can."""
        ...

    @property
    def is_complete(self) -> bool:
        """Whether nothing but an end can follow."""
        ...

    def accept(self, token_id: int) -> bool:
        """The completion goes on with this id; False (and an error) when it may not."""
        ...

    def forced(self) -> list[int]:
        """The ids that the next bytes are written with, where the grammar leaves no choice of bytes."""
        ...


class Grammar(Protocol):
    """A compiled constraint; any number of completions can follow it."""

    def start(self) -> Matcher:
        """A matcher at the beginning."""
        ...


class GrammarBackend(Protocol):
    """Compiles for one vocabulary. `compile` may be called from any thread, `fill` from one at a time."""

    def compile(self, constraint: Constraint) -> Grammar:
        """The compiled constraint; raises InvalidRequest naming the kind, and saying what is wrong."""
        ...

    def fill(self, rows: Sequence[tuple[Matcher, int]], masks: UInt32Array) -> None:
        """Write into `masks[i]`, for each (matcher, i), which ids may come next: bit `id % 32` of word `id // 32`."""
        ...


grammar_backends: Registry[Callable[[Vocabulary, GrammarOptions], GrammarBackend]] = Registry("grammar backend")
