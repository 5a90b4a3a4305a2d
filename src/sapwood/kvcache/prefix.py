"""The contract of a prefix index: which token runs have their KV in which pages, and who uses them.

Owns the protocol, its result types and the registry of kinds; knows no data structure. Invariant of every kind: a page that it
holds was full (or is a tail) when it was inserted, is never written again, and is given back to the pool only when unused.

Token runs are bytes (little-endian int32 per id), pages are ids of the pool the index was made with; position p of a run lies
in page p // page_size at offset p % page_size. A handle names the end of a path that starts at a namespace's root.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

from sapwood.kvcache.pages import PagePool
from sapwood.registry import Registry

H = TypeVar("H")


@dataclass(frozen=True, slots=True)
class Match(Generic[H]):
    """The longest known prefix of a run: whole `pages`, then `num_rows` tokens that begin the page `source_page`.

    Valid until the index changes; `lock` refuses a stale one.
    """

    namespace: str
    revision: int
    pages: list[int]
    node: H | None = None
    num_node_pages: int = 0
    num_rows: int = 0
    source_page: int = -1
    source: H | None = None


@dataclass(frozen=True, slots=True)
class Lock(Generic[H]):
    """Handles that `lock` counted a user on; `source` is set when the partly matched page was asked for."""

    handle: H
    source: H | None


@dataclass(frozen=True, slots=True)
class Insertion(Generic[H]):
    """What became of inserted pages: the first `len(shared)` were known already and lie in `shared`; the rest are the
    index's if `is_taken`. The caller's user count has moved to `handle`."""

    handle: H
    shared: list[int]
    is_taken: bool


class PrefixIndex(Protocol[H]):
    """Maps token runs to pages. All operations are deterministic; none looks at a clock."""

    is_sharing: bool
    """Whether a later request can ever find an earlier one's pages."""

    @property
    def num_pages(self) -> int:
        """Pages held by the index, used or not."""
        ...

    @property
    def num_evictable(self) -> int:
        """Pages that `evict` could free now."""
        ...

    @property
    def num_evicted_total(self) -> int:
        """Pages freed by `evict` since the start."""
        ...

    def match(self, namespace: str, run: bytes, *, touch: bool = True) -> Match[H]:
        """The longest prefix of `run` that is known; changes nothing but recency (`touch=False`: nothing at all)."""
        ...

    def lock(self, match: Match[H], *, with_source: bool = False) -> Lock[H]:
        """Count a user on the matched path, and on the partly matched page when asked; locked pages stay."""
        ...

    def unlock(self, handle: H) -> None:
        """Drop one user from the path that ends at `handle`."""
        ...

    def insert(self, handle: H, run: bytes, pages: Sequence[int]) -> Insertion[H]:
        """Extend a locked path by whole pages that hold `run`; the caller's user moves to the new end."""
        ...

    def insert_tail(self, handle: H, run: bytes, page: int) -> bool:
        """Offer a partly filled page that continues a locked path; True when the index took it."""
        ...

    def evict(self, num_pages: int) -> int:
        """Give up to `num_pages` unused pages back to the pool, in the policy's order; returns how many."""
        ...

    def clear(self) -> None:
        """Forget everything: unused pages are freed now, used ones as their locks go, and none is matched again."""
        ...

    def held_pages(self) -> Iterable[int]:
        """Every page that the index holds, for audits."""
        ...

    def violations(self, handles: Sequence[H]) -> list[str]:
        """What is wrong with the index, given every handle that is in use (once per user)."""
        ...


PrefixIndexFactory = Callable[[PagePool, str], PrefixIndex[Any]]
"""Makes an index over a pool; the second argument names an eviction policy."""

prefix_indexes: Registry[PrefixIndexFactory] = Registry("prefix cache")
