"""What a stream has told so far: its text in pieces, its variables, and what is known about them.

Owns values that others wait for; does not wait. Invariant: pieces are only added, so a reader needs no more than a position.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(slots=True)
class Journal:
    """Pieces under None are the whole text, under a name the text of that variable. `inherited`: variables from before a fork."""

    values: dict[str, Any] = field(default_factory=dict)
    meta: dict[str, Any] = field(default_factory=dict)
    inherited: frozenset[str] = frozenset()
    _pieces: dict[str | None, list[str]] = field(default_factory=dict)
    _scopes: dict[str, int] = field(default_factory=dict)

    def copy(self) -> Journal:
        """The journal of a stream that goes on from here."""
        pieces = {name: list(texts) for name, texts in self._pieces.items()}
        return Journal(dict(self.values), dict(self.meta), frozenset(self.values), pieces, dict(self._scopes))

    def tell(self, text: str, name: str | None = None) -> None:
        """More of the text, which is also more of the variable `name`."""
        self._pieces.setdefault(None, []).append(text)
        if name is not None:
            self._pieces.setdefault(name, []).append(text)

    def set(self, name: str, value: Any, meta: Any = None) -> None:
        """A variable's value, for good or until it is set again."""
        self.values[name] = value
        self.inherited -= {name}
        if meta is not None:
            self.meta[name] = meta
        if isinstance(value, str) and value and name not in self._pieces:
            self._pieces[name] = [value]

    def read(self, name: str | None, position: int) -> list[str]:
        """The pieces from `position` on."""
        return self._pieces.get(name, [])[position:]

    def length(self, name: str | None) -> int:
        """How many pieces there are."""
        return len(self._pieces.get(name, ()))

    def begin_scope(self, name: str, position: int) -> None:
        """A variable begins at this character of the text."""
        self._scopes[name] = position

    def end_scope(self, name: str) -> int:
        """Where it began."""
        return self._scopes.pop(name)
