"""The pages of layers that see only a window: each lies beside the page of the other layers that holds the same tokens.

Owns the pool of window pages, which of them stands beside which page, and who still sees them; does not know requests or token
runs. Invariant: a page has at most one window page beside it; the prefix index keeps what nobody sees until it is needed (coldest
first), everybody else gives it back at once; a page that is freed takes its window page with it.

"Page" means a page of the layers that see everything, "window page" the one beside it.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Iterable, Sequence

from sapwood.kvcache.pages import PagePool

NOTHING = -1


class WindowPages:
    """Window pages for a pool of `num_beside` pages."""

    def __init__(self, num_pages: int, page_size: int, window: int, num_beside: int) -> None:
        self.pool = PagePool(num_pages, page_size)
        self.num_uses = 0
        self.num_evicted_total = 0
        self._window = window
        self._beside = [NOTHING] * num_beside
        self._users = [0] * num_beside
        self._is_indexed = bytearray(num_beside)
        self._unused: OrderedDict[int, None] = OrderedDict()

    # ------------------------------------------------------------------------------------------------- questions
    @property
    def num_available(self) -> int:
        """Window pages that could be taken now."""
        return self.pool.num_free + len(self._unused)

    @property
    def num_evictable(self) -> int:
        """Window pages that only the prefix index keeps."""
        return len(self._unused)

    def first_seen(self, position: int) -> int:
        """Index of the first page of a run that a row at `position` (or later) sees."""
        return max(position - self._window + 1, 0) // self.pool.page_size

    def is_held(self, page: int) -> bool:
        """Whether the page has its window page."""
        return self._beside[page] != NOTHING

    def beside(self, pages: Iterable[int]) -> list[int]:
        """The window pages of pages that have one."""
        return [self._beside[page] for page in pages]

    def num_unused(self, pages: Iterable[int]) -> int:
        """How many of these pages would no longer count as available if they were used."""
        return sum(page in self._unused for page in pages)

    def usable(self, pages: Sequence[int]) -> int:
        """How many pages of a run a new request can start behind: the most whose window is all there."""
        end = index = len(pages)
        while end:
            first = self.first_seen(end * self.pool.page_size)
            while index > first and self._beside[pages[index - 1]] != NOTHING:
                index -= 1
            if index <= first:
                return end
            end = index = index - 1  # whatever ends further back but behind this page sees it too
        return 0

    # ------------------------------------------------------------------------------------------------- users
    def use(self, pages: Iterable[int]) -> None:
        """Count a user on pages that have their window page."""
        for page in pages:
            self._users[page] += 1
            self.num_uses += 1
            self._unused.pop(page, None)

    def take(self, pages: Sequence[int]) -> None:
        """Give each page a window page, and count a user on it; the caller has made sure that so many are available."""
        if len(pages) > self.num_available:
            raise RuntimeError(f"{len(pages)} window pages were asked of {self.num_available}; ask for room before taking")
        while self.pool.num_free < len(pages):
            coldest, _ = self._unused.popitem(last=False)
            self._drop(coldest)
            self.num_evicted_total += 1
        for page, window_page in zip(pages, self.pool.take(len(pages)), strict=True):
            self._beside[page] = window_page
        self.use(pages)

    def release(self, pages: Iterable[int]) -> None:
        """Drop a user; pages that are released together should come in the order of their positions."""
        for page in pages:
            self._users[page] -= 1
            self.num_uses -= 1
            self._settle(page)

    def _settle(self, page: int) -> None:
        if not self._users[page] and self._beside[page] != NOTHING:
            if self._is_indexed[page]:
                self._unused[page] = None
            else:
                self._drop(page)

    def _drop(self, page: int) -> None:
        self.pool.give_back([self._beside[page]])
        self._beside[page] = NOTHING

    # ------------------------------------------------------------------------------------------------- changing hands
    def publish(self, pages: Iterable[int]) -> None:
        """These pages belong to the prefix index from now on."""
        for page in pages:
            self._is_indexed[page] = True
            self._settle(page)

    def merge(self, own: int, known: int) -> None:
        """The index had the tokens of page `own` in page `known` already: the user moves there. Where the window page of `known`
        is gone, that of `own` moves too; otherwise launched steps may still read it, and it stays till `own` is freed."""
        if not self._users[own]:
            return
        if self._beside[known] == NOTHING:
            self._beside[known], self._beside[own] = self._beside[own], NOTHING
        self._users[own] -= 1
        self.num_uses -= 1
        self.use([known])

    def forget(self, pages: Iterable[int]) -> None:
        """These pages are freed; nobody sees them."""
        for page in pages:
            self._is_indexed[page] = False
            self._unused.pop(page, None)
            if self._beside[page] != NOTHING:
                self._drop(page)

    # ------------------------------------------------------------------------------------------------- audit
    def violations(self, users: Iterable[int], indexed: Iterable[int], free: Iterable[int]) -> list[str]:
        """One line per broken law, given the pages that are seen (once per user), those of the index, and the free ones: every
        window page is free, or beside one page that somebody holds, and has as many users as there are."""
        counted, kept, unheld = Counter(users), set(indexed), set(free)
        problems = []
        taken = [page for page in self._beside if page != NOTHING]
        if sorted([*taken, *self.pool.free_pages]) != list(range(self.pool.num_pages)):
            problems.append(f"{len(taken)} window pages in use and {self.pool.num_free} free ones are not the pool's")
        for page, window_page in enumerate(self._beside):
            where = f"window page {window_page} beside page {page}"
            if self._users[page] != counted[page]:
                problems.append(f"{where}: counts {self._users[page]} users, has {counted[page]}")
            if counted[page] and window_page == NOTHING:
                problems.append(f"{where}: is seen but not there")
            if bool(self._is_indexed[page]) != (page in kept):
                problems.append(f"{where}: is wrong about belonging to the index")
            if window_page != NOTHING and page in unheld:
                problems.append(f"{where}: nobody holds the page")
            if (page in self._unused) != (page in kept and not counted[page] and window_page != NOTHING):
                problems.append(f"{where}: can be evicted although it is in use, or not although nobody uses it")
        if self.num_uses != counted.total():
            problems.append(f"{self.num_uses} uses of window pages are counted, {counted.total()} exist")
        return problems
