"""Which window pages a request holds: those of the positions that its next row sees, and of those it has just launched.

Owns how many window pages running requests may still claim, and moves their windows along; which window page stands beside which
page is `WindowPages`' business. Invariant: the claims of all who hold a slot or a pin fit the pool, so whoever runs gets on as
soon as its launched steps are confirmed, and nobody is ever retracted for want of window pages.

A claim is what a request needs at most to compute its next position; it does not grow with the context. Chunks of prompts may
take more, up to a window at a time, while nobody else has a claim to it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

from sapwood.core.plan import EngineLimits, window_claim
from sapwood.core.request import Request
from sapwood.core.units import div_ceil
from sapwood.kvcache.pages import PagePool
from sapwood.kvcache.prefix import Match, PrefixIndex
from sapwood.kvcache.window import WindowPages
from sapwood.kvcache.windowed import WindowedIndex
from sapwood.scheduler.memory import kv_len
from sapwood.scheduler.plan_builder import PlanBuilder
from sapwood.scheduler.resident import Resident

UNLIMITED = 2**62


class SlidingWindow:
    """The windows of everybody who runs. A resident sees `pages[window_first:window_end]`."""

    def __init__(self, limits: EngineLimits, pool: PagePool) -> None:
        self._pool = pool
        self.pages = WindowPages(limits.num_window_pages, limits.page_size, limits.window, limits.num_pages)
        pool.on_free = self.pages.forget
        self._page_size = limits.page_size
        self._largest_claim = window_claim(limits.window, limits.page_size)
        self._largest_chunk = max(limits.window, limits.page_size)
        self._num_claimed = 0

    def over(self, index: PrefixIndex[Any]) -> PrefixIndex[Any]:
        """The index whose matches have their window."""
        return WindowedIndex(index, self.pages) if index.is_sharing else index

    # ------------------------------------------------------------------------------------------------- admission
    @property
    def num_available(self) -> int:
        """Window pages that could be taken now."""
        return self.pages.num_available

    @property
    def num_pages(self) -> int:
        """Window pages in all."""
        return self.pages.pool.num_pages

    def _claim(self, request: Request) -> int:
        return min(div_ceil(kv_len(request.num_prompt, request.max_len), self._page_size), self._largest_claim)

    @property
    def _num_owed(self) -> int:
        """Pages that those who run do not hold yet but may claim."""
        return max(self._num_claimed - self.pages.num_uses, 0)

    def fits(self, request: Request, match: Match[Any], *, with_source: bool) -> bool:
        """Whether a waiting request could start behind its match now, and would always get on."""
        num_whole = len(match.pages)
        seen = match.pages[self.pages.first_seen(num_whole * self._page_size) :]
        seen += [match.source_page] if with_source and match.num_rows else []
        num_spare = self.num_available - self.pages.num_unused(seen) - self._num_owed
        return self._num_claimed + self._claim(request) <= self.num_pages and num_spare > 0

    def enter(self, resident: Resident) -> None:
        """A request was given its matched pages: it sees the last of them, and stakes its claim."""
        self._num_claimed += self._claim(resident.request)
        resident.window_end = resident.num_shared
        resident.window_first = self.pages.first_seen(resident.num_shared * self._page_size)
        self.pages.use(resident.window_pages)

    # ------------------------------------------------------------------------------------------------- growing
    def room(self, resident: Resident) -> int:
        """How many positions the next chunk of a prompt may have; 0 while others have to confirm a step first."""
        num_held = resident.window_end - resident.window_first
        num_owed_others = self._num_owed - max(self._claim(resident.request) - num_held, 0)
        num_spare = max(self.num_available - max(num_owed_others, 0), 0)
        num_positions = (resident.window_end + num_spare) * self._page_size - resident.request.num_computed
        return min(num_positions, self._largest_chunk)

    def open(self, builder: PlanBuilder, resident: Resident, num_positions: int) -> None:
        """Window pages for the next positions, as far as they have none."""
        first, end = resident.window_end, div_ceil(resident.request.num_computed + num_positions, self._page_size)
        if end > first:
            self.pages.take(resident.pages[first:end])
            resident.window_end = end
            self.rewrite(builder, resident, first, end)

    def start(self, builder: PlanBuilder, resident: Resident, source_page: int, num_rows: int) -> None:
        """Let the plan write what a new resident sees, and copy rows of a partly matched page behind that."""
        if num_rows:
            own = resident.pages[resident.window_end]
            self.pages.take([own])
            resident.window_end += 1
            source, target = self.pages.beside([source_page, own])
            builder.copy_window_rows(source, target, num_rows)
        self.rewrite(builder, resident, resident.window_first, resident.window_end)

    def rewrite(self, builder: PlanBuilder, resident: Resident, first: int, end: int) -> None:
        """Let the plan point the window's row to pages [first, end), as far as they are seen."""
        first, end = max(first, resident.window_first), min(end, resident.window_end)
        if first < end:
            builder.write_window(resident, first, self.pages.beside(resident.pages[first:end]))

    def sees(self, resident: Resident, index: int) -> bool:
        """Whether rows can be copied from the resident's page number `index`."""
        return resident.window_first <= index < resident.window_end

    # ------------------------------------------------------------------------------------------------- letting go
    def hold(self, pages: Sequence[int]) -> None:
        """A launched step reads these pages for somebody else, so they stay till `let_go`."""
        self.pages.use(pages)

    def let_go(self, pages: Sequence[int]) -> None:
        """That step is confirmed."""
        self.pages.release(pages)

    def advance(self, resident: Resident) -> None:
        """Positions were confirmed: no row to come, nor whoever starts behind the last full page, sees what lies further back."""
        page_size = self._page_size
        first = self.pages.first_seen(resident.request.num_confirmed // page_size * page_size)
        if first > resident.window_first:
            self.pages.release(resident.pages[resident.window_first : first])
            resident.window_first = first

    def leave(self, resident: Resident, *, is_pinned: bool) -> list[int]:
        """A request gives up its claim and its window; when its path is pinned, what is seen from the path's end on is the
        pin's (and returned)."""
        border = min(max(resident.num_shared, resident.window_first), resident.window_end) if is_pinned else resident.window_first
        pinned = resident.pages[resident.window_first : border]
        self.pages.release(resident.pages[border : resident.window_end])
        resident.window_first = resident.window_end
        self._num_claimed += len(pinned) - self._claim(resident.request)
        return pinned

    def unpin(self, pages: Sequence[int]) -> None:
        """A pin lets go of what `leave` returned."""
        self._num_claimed -= len(pages)
        self.pages.release(pages)

    # ------------------------------------------------------------------------------------------------- audit
    @property
    def counts(self) -> dict[str, int]:
        """Gauges and running totals, by the names of `StepStats`."""
        return {
            "num_window_pages": self.num_pages,
            "num_free_window_pages": self.pages.pool.num_free,
            "num_evictable_window_pages": self.pages.num_evictable,
            "evicted_window_pages_total": self.pages.num_evicted_total,
        }

    def violations(
        self, residents: Sequence[Resident], others: Sequence[list[int]], pins: Sequence[list[int]], index: PrefixIndex[Any]
    ) -> list[str]:
        """One line per broken law of window pages; `others` are pages that launched steps read for somebody else."""
        users = [page for pages in (*(r.window_pages for r in residents), *others, *pins) for page in pages]
        problems = self.pages.violations(users, index.held_pages(), self._pool.free_pages)
        num_claimed = sum(self._claim(resident.request) for resident in residents) + sum(map(len, pins))
        if num_claimed != self._num_claimed or num_claimed > self.num_pages:
            problems.append(f"{self._num_claimed} window pages of {self.num_pages} are claimed, it is {num_claimed}")
        return problems


class NoWindow:
    """The twin for models whose layers all use the same pages."""

    num_available = UNLIMITED
    num_pages = 0
    counts: Mapping[str, int] = MappingProxyType({})

    def over(self, index: PrefixIndex[Any]) -> PrefixIndex[Any]:
        """The index as it is."""
        return index

    def fits(self, request: Request, match: Match[Any], *, with_source: bool) -> bool:
        """Always."""
        return True

    def enter(self, resident: Resident) -> None:
        """Nothing."""

    def room(self, resident: Resident) -> int:
        """Any number."""
        return UNLIMITED

    def open(self, builder: PlanBuilder, resident: Resident, num_positions: int) -> None:
        """Nothing."""

    def start(self, builder: PlanBuilder, resident: Resident, source_page: int, num_rows: int) -> None:
        """Nothing."""

    def rewrite(self, builder: PlanBuilder, resident: Resident, first: int, end: int) -> None:
        """Nothing."""

    def sees(self, resident: Resident, index: int) -> bool:
        """Always."""
        return True

    def hold(self, pages: Sequence[int]) -> None:
        """Nothing."""

    def let_go(self, pages: Sequence[int]) -> None:
        """Nothing."""

    def advance(self, resident: Resident) -> None:
        """Nothing."""

    def leave(self, resident: Resident, *, is_pinned: bool) -> list[int]:
        """Nothing."""
        return []

    def unpin(self, pages: Sequence[int]) -> None:
        """Nothing."""

    def violations(
        self, residents: Sequence[Resident], others: Sequence[list[int]], pins: Sequence[list[int]], index: PrefixIndex[Any]
    ) -> list[str]:
        """None."""
        return []


Windows = SlidingWindow | NoWindow


def make_windows(limits: EngineLimits, pool: PagePool) -> Windows:
    """Windows over the pages of `pool`, where the model's layers differ in what they see."""
    return SlidingWindow(limits, pool) if limits.window else NoWindow()
