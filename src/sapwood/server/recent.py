"""Which number the latest request of a client's id had.

Owns a bounded map; does not know whether a request still runs. Invariant: at most `capacity` ids, the latest ones.
"""

from __future__ import annotations


class RecentRids:
    """Remembers numbers by rid, also after the end."""

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._numbers: dict[str, int] = {}

    def add(self, rid: str, number: int) -> None:
        """A request with this id was accepted."""
        self._numbers.pop(rid, None)
        self._numbers[rid] = number
        if len(self._numbers) > self._capacity:
            del self._numbers[next(iter(self._numbers))]

    def find(self, rid: str) -> int | None:
        """The number of the latest request with this id."""
        return self._numbers.get(rid)
