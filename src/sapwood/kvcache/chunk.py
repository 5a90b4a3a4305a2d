"""The prefix index that shares nothing: every request computes its whole prompt (`--disable-radix-cache`).

Owns a count of users; knows no runs. Invariant: it never holds a page.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from sapwood.kvcache.pages import PagePool
from sapwood.kvcache.prefix import Insertion, Lock, Match, prefix_indexes


class NoReuse:
    """Matches nothing and takes nothing; the null twin of the radix index."""

    is_sharing = False
    num_pages = 0
    num_evictable = 0
    num_evicted_total = 0

    def __init__(self) -> None:
        self._num_users = 0

    def match(self, namespace: str, run: bytes, *, touch: bool = True) -> Match[None]:
        """Nothing is ever known."""
        return Match(namespace, 0, [])

    def lock(self, match: Match[None], *, with_source: bool = False) -> Lock[None]:
        """Count a user."""
        self._num_users += 1
        return Lock(None, None)

    def unlock(self, handle: None) -> None:
        """Drop a user."""
        self._num_users -= 1

    def insert(self, handle: None, run: bytes, pages: Sequence[int]) -> Insertion[None]:
        """Leave the pages with the caller."""
        return Insertion(None, [], False)

    def insert_tail(self, handle: None, run: bytes, page: int) -> bool:
        """Leave the page with the caller."""
        return False

    def evict(self, num_pages: int) -> int:
        """Nothing to free."""
        return 0

    def clear(self) -> None:
        """Nothing to forget."""

    def held_pages(self) -> Iterable[int]:
        """None."""
        return ()

    def violations(self, handles: Sequence[None]) -> list[str]:
        """Users that were counted must be the users there are."""
        if len(handles) == self._num_users:
            return []
        return [f"{self._num_users} users are counted, {len(handles)} exist"]


@prefix_indexes.register("chunk")
def make_no_reuse(pool: PagePool, eviction: str) -> NoReuse:
    """The index for `--disable-radix-cache`; neither argument matters."""
    return NoReuse()
