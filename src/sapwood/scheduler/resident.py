"""A request that holds a slot and pages, and the lists of those that run and those that are on their way out.

Owns who is where; does not decide. Invariant: a resident leaves (slot and pages return) only when the last launched step that
may touch them is confirmed.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from sapwood.core.request import Request


@dataclass(slots=True, eq=False)
class Resident:
    """What an admitted request holds.

    `pages[i]` has positions [i * page_size, (i + 1) * page_size); the first `num_shared` belong to the prefix index, whose path
    `handle` counts this request as a user. `source` is the path of a page whose rows are about to be copied. `last_step` is the
    last launched step that may touch slot or pages. `duplicates` are (first page index, replaced pages) runs that the device's
    row still points to. Layers with a window see pages [window_first, window_end), where they have pages of their own.
    """

    request: Request
    slot: int
    pages: list[int]
    num_shared: int
    handle: Any
    source: Any = None
    last_step: int = 0
    is_leaving: bool = False
    duplicates: list[tuple[int, list[int]]] = field(default_factory=list)
    window_first: int = 0
    window_end: int = 0

    @property
    def num_private(self) -> int:
        """How many pages it alone holds."""
        return len(self.pages) - self.num_shared + sum(len(replaced) for _, replaced in self.duplicates)

    @property
    def window_pages(self) -> list[int]:
        """The pages that layers with a window see."""
        return self.pages[self.window_first : self.window_end]


def seniority(resident: Resident) -> tuple[int, int]:
    """Sorts the resident that is retracted last first."""
    return resident.request.seniority
