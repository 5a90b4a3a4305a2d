"""Named choices (policies, cache kinds, kernels, architectures): one small lookup table per kind.

Knows nothing of what it holds. Invariant: an unknown name is an error that lists the known ones; nothing falls back silently.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

from sapwood.errors import ConfigError

T = TypeVar("T")


class Registry(Generic[T]):
    """Maps names to entries of one kind; `what` is the noun for error messages."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._entries: dict[str, T] = {}

    def register(self, name: str) -> Callable[[T], T]:
        """Decorator: file the decorated entry under `name`; a second entry of that name is an error."""

        def add(entry: T) -> T:
            if name in self._entries:
                raise ValueError(f"{self._what} {name!r} is registered twice")
            self._entries[name] = entry
            return entry

        return add

    def get(self, name: str) -> T:
        """The entry called `name`; raises ConfigError listing the known names."""
        try:
            return self._entries[name]
        except KeyError:
            known = ", ".join(sorted(self._entries))
            raise ConfigError(f"unknown {self._what} {name!r}; known: {known}") from None

    def __contains__(self, name: str) -> bool:
        return name in self._entries

    def __iter__(self) -> Iterator[str]:
        return iter(sorted(self._entries))
