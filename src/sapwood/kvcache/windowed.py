"""The prefix index of a model some of whose layers see only a window: what matches must have its window, too.

Owns the cut that a missing window makes in a match; the inner index knows the runs, `WindowPages` who sees what. Invariant: a
request that starts behind a match finds every window page that its first row sees.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

from sapwood.core.request import ID_BYTES
from sapwood.kvcache.prefix import Insertion, Lock, Match, PrefixIndex
from sapwood.kvcache.window import WindowPages


class WindowedIndex:
    """See `PrefixIndex` for the contract; handles are the inner index's."""

    is_sharing = True

    def __init__(self, inner: PrefixIndex[Any], window: WindowPages) -> None:
        self._inner = inner
        self._window = window
        self._page_bytes = window.pool.page_size * ID_BYTES
        self.on_evict: Callable[[list[int]], None] = lambda pages: None
        inner.on_evict = lambda pages: self.on_evict(pages)

    @property
    def num_pages(self) -> int:
        """Pages held by the index."""
        return self._inner.num_pages

    @property
    def num_evictable(self) -> int:
        """Pages that `evict` could free now."""
        return self._inner.num_evictable

    @property
    def num_evicted_total(self) -> int:
        """Pages freed by `evict` since the start."""
        return self._inner.num_evicted_total

    def match(self, namespace: str, run: bytes, *, touch: bool = True) -> Match[Any]:
        """The inner index's match as far as the window behind it is there."""
        match = self._inner.match(namespace, run, touch=touch)
        num_usable = self._window.usable(match.pages)
        if num_usable < len(match.pages):
            return self._inner.match(namespace, run[: num_usable * self._page_bytes], touch=False)
        if match.num_rows and not self._window.is_held(match.source_page):
            return replace(match, num_rows=0, source_page=-1, source=None)
        return match

    def lock(self, match: Match[Any], *, with_source: bool = False, priority: int = 0) -> Lock[Any]:
        """Count a user on the path; users of windows are counted by whoever sees them."""
        return self._inner.lock(match, with_source=with_source, priority=priority)

    def unlock(self, handle: Any) -> None:
        """Drop a user from the path."""
        self._inner.unlock(handle)

    def insert(self, handle: Any, run: bytes, pages: Sequence[int], *, priority: int = 0) -> Insertion[Any]:
        """Extend a path; window pages of duplicates go to what was known, where that has lost its own."""
        insertion = self._inner.insert(handle, run, pages, priority=priority)
        if insertion.is_taken:
            for own, known in zip(pages, insertion.shared, strict=False):
                self._window.merge(own, known)
            self._window.publish(pages[len(insertion.shared) :])
        return insertion

    def insert_tail(self, handle: Any, run: bytes, page: int, *, priority: int = 0) -> bool:
        """Offer a partly filled page."""
        is_taken = self._inner.insert_tail(handle, run, page, priority=priority)
        if is_taken:
            self._window.publish([page])
        return is_taken

    def evict(self, num_pages: int) -> int:
        """Give pages back to the pool, and with them their window pages."""
        return self._inner.evict(num_pages)

    def end_of(self, handle: Any) -> tuple[str | None, int]:
        """What a path ends in."""
        return self._inner.end_of(handle)

    def clear(self) -> None:
        """Forget everything."""
        self._inner.clear()

    def held_pages(self) -> Iterable[int]:
        """Every page that the index holds."""
        return self._inner.held_pages()

    def violations(self, handles: Sequence[Any]) -> list[str]:
        """What is wrong with the inner index."""
        return self._inner.violations(handles)
