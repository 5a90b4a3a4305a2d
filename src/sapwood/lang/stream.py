"""The seam between a program's state and what becomes of its text: running it, or writing down what would be run.

Owns the protocol alone. Invariant: `append` never waits, and whatever was appended takes effect in order.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from sapwood.lang.ir import Expr
from sapwood.lang.pieces import Pieces


class Stream(Protocol):
    """One growing text with its variables."""

    def append(self, expr: Expr) -> None:
        """Say this after everything that was said before."""
        ...

    def get(self, name: str) -> Any:
        """The variable's value, waited for; raises what its generation failed with, KeyError when nothing sets it."""
        ...

    def set(self, name: str, value: Any) -> None:
        """Give a variable a value of the program's own."""
        ...

    def has(self, name: str) -> bool:
        """Whether the variable is set once everything appended has been done."""
        ...

    def meta(self, name: str) -> Any:
        """What is known about the generation of a variable, waited for."""
        ...

    def names(self) -> list[str]:
        """The variables that were set since the stream began, waited for."""
        ...

    def fork(self, count: int) -> Sequence[Stream]:
        """Streams that go on from here, each on its own."""
        ...

    def sync(self) -> None:
        """Wait until everything appended has been done; raises what failed."""
        ...

    def text(self, *, own: bool = False) -> str:
        """Everything said, waited for; `own`: only since the stream was forked off."""
        ...

    def messages(self) -> list[dict[str, str]]:
        """The messages so far, waited for."""
        ...

    def error(self) -> BaseException | None:
        """What failed here or in a stream forked off, if anything has."""
        ...

    def cancel(self) -> None:
        """End what runs; whoever waits is told."""
        ...

    def pieces(self, name: str | None) -> Pieces:
        """The text (or one variable's) in pieces as they come, to the end."""
        ...
