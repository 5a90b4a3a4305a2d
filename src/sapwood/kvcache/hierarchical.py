"""The prefix index over several tiers: an index of the KV store's pages, and what continues its matches further down.

Owns the chained key of every whole page that the inner index holds; does not move pages. Invariant: a key is known for exactly
the pages that entered by `insert` and have not been evicted or flushed, and whoever watches hears of each exactly once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

from sapwood.core.request import ID_BYTES
from sapwood.kvcache.events import EventLog
from sapwood.kvcache.keys import chained_keys, root_key
from sapwood.kvcache.prefix import Insertion, Lock, Match, PrefixIndex
from sapwood.kvcache.tiers import Tiers


class HierarchicalIndex:
    """See `PrefixIndex` for the contract; handles are the inner index's. Matches go on in the tiers below; `events` hears
    what comes and goes."""

    is_sharing = True

    def __init__(self, inner: PrefixIndex[Any], tiers: Tiers, events: EventLog, page_size: int) -> None:
        self._inner = inner
        self._tiers = tiers
        self._events = events
        self._page_size = page_size
        self._page_bytes = page_size * ID_BYTES
        self._keys: dict[int, bytes] = {}
        self.on_evict: Callable[[list[int]], None] = lambda pages: None
        inner.on_evict = self._on_evict

    @property
    def num_pages(self) -> int:
        """Pages of the KV store held by the index."""
        return self._inner.num_pages

    @property
    def num_evictable(self) -> int:
        """Pages of the KV store that `evict` could free now."""
        return self._inner.num_evictable

    @property
    def num_evicted_total(self) -> int:
        """Pages of the KV store freed by `evict` since the start."""
        return self._inner.num_evicted_total

    def match(self, namespace: str, run: bytes, *, touch: bool = True) -> Match[Any]:
        """The inner index's match, and the host pages that continue it."""
        match = self._inner.match(namespace, run, touch=touch)
        host = self._tiers.follow(self._key_after(match), run, len(match.pages) * self._page_bytes, touch=touch)
        return replace(match, host=host, num_rows=0, source_page=-1, source=None) if host else match

    def seek(self, number: int, namespace: str, run: bytes) -> None:
        """Let storage be searched for what memory does not hold of a request's tokens."""
        match = self._inner.match(namespace, run)
        self._tiers.seek(number, self._key_after(match), run, len(match.pages) * self._page_bytes)

    def _key_after(self, match: Match[Any]) -> bytes:
        return self._keys[match.pages[-1]] if match.pages else root_key(match.namespace, self._page_size)

    def lock(self, match: Match[Any], *, with_source: bool = False, priority: int = 0) -> Lock[Any]:
        """Count a user on the inner match."""
        lock = self._inner.lock(match, with_source=with_source, priority=priority)
        self._tiers.on_found([self._keys[page] for page in match.pages], match.pages)
        return lock

    def unlock(self, handle: Any) -> None:
        """Drop a user."""
        self._inner.unlock(handle)

    def insert(self, handle: Any, run: bytes, pages: Sequence[int], *, priority: int = 0) -> Insertion[Any]:
        """Extend a path by whole pages, and name those that are new."""
        namespace, last_page = self._inner.end_of(handle)
        insertion = self._inner.insert(handle, run, pages, priority=priority)
        if namespace is None:  # flushed while in use
            return insertion
        parent = self._keys[last_page] if last_page >= 0 else root_key(namespace, self._page_size)
        keys = list(chained_keys(parent, run, self._page_bytes))
        num_shared = len(insertion.shared)
        fresh_keys, fresh_pages = keys[num_shared:], pages[num_shared:]
        self._keys.update(zip(fresh_pages, fresh_keys, strict=True))
        self._tiers.on_found(keys[:num_shared], insertion.shared)
        self._tiers.on_stored(fresh_keys, fresh_pages)
        above = keys[num_shared - 1] if num_shared else parent if last_page >= 0 else None
        self._events.stored(fresh_keys, above, run[num_shared * self._page_bytes :])
        return insertion

    def insert_tail(self, handle: Any, run: bytes, page: int, *, priority: int = 0) -> bool:
        """A partly filled page has no key and stays in the first tier."""
        return self._inner.insert_tail(handle, run, page, priority=priority)

    def evict(self, num_pages: int) -> int:
        """Give up unused pages of the KV store."""
        return self._inner.evict(num_pages)

    def _on_evict(self, pages: list[int]) -> None:
        named = [page for page in pages if page in self._keys]
        keys = [self._keys.pop(page) for page in named]
        self._tiers.on_evicted(keys, named)
        self._events.removed(keys)
        self.on_evict(pages)

    def end_of(self, handle: Any) -> tuple[str | None, int]:
        """What a path ends in."""
        return self._inner.end_of(handle)

    def clear(self) -> None:
        """Forget everything in memory."""
        self._inner.clear()
        self._keys.clear()
        self._tiers.on_cleared()
        self._events.cleared()

    def held_pages(self) -> Iterable[int]:
        """Every page of the KV store that the index holds."""
        return self._inner.held_pages()

    def named_pages(self) -> list[tuple[bytes, int]]:
        """Key and page of every whole page of the KV store, what comes first in a run before what follows."""
        return [(key, page) for page, key in self._keys.items()]

    def violations(self, handles: Sequence[Any]) -> list[str]:
        """What is wrong with the inner index, the keys and the host pages."""
        problems = self._inner.violations(handles) + self._tiers.violations()
        lost = self._keys.keys() - set(self._inner.held_pages())
        return [*problems, f"{len(lost)} pages have a key but are not in the index"] if lost else problems
