"""The pool of KV pages: which page ids are free.

Owns the free list and nothing else; who holds a taken page is the business of its taker (a request or the prefix index), and
`audit` proves that every page has exactly one holder. Invariant: a page id is in the free list at most once.
"""

from __future__ import annotations

from collections.abc import Callable


class PagePool:
    """Hands out page ids in [0, num_pages); the page freed last is taken first, so that it may still be warm in a cache."""

    def __init__(self, num_pages: int, page_size: int) -> None:
        self.num_pages = num_pages
        self.page_size = page_size
        self._free = list(range(num_pages - 1, -1, -1))
        self.on_free: Callable[[list[int]], None] = lambda pages: None
        """Called with pages that are given back."""

    @property
    def num_free(self) -> int:
        """Pages that nobody holds."""
        return len(self._free)

    @property
    def free_pages(self) -> tuple[int, ...]:
        """The free page ids, for audits."""
        return tuple(self._free)

    def take(self, count: int) -> list[int]:
        """Take `count` pages; the caller has made sure that they are free."""
        if count > len(self._free):
            raise RuntimeError(f"{count} pages were asked of a pool with {len(self._free)} free; evict before taking")
        if count == 0:
            return []
        taken = self._free[-count:]
        del self._free[-count:]
        taken.reverse()
        return taken

    def give_back(self, pages: list[int]) -> None:
        """Return pages that no launched step can touch any more."""
        self._free.extend(reversed(pages))
        self.on_free(pages)
