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


@dataclass(slots=True, eq=False)
class HostPage:
    """A page of KV in the host's memory under its chained hash. `num_users` plans and transfers touch it; `is_stored` when the
    storage has it too, `is_new` when it came from there and has not been used yet."""

    key: bytes
    page: int
    num_users: int = 0
    is_stored: bool = False
    is_new: bool = False


@dataclass(frozen=True, slots=True)
class Match(Generic[H]):
    """The longest known prefix of a run: whole `pages`, then `num_rows` tokens that begin the page `source_page`.

    `host` are pages that follow `pages` and lie in a lower tier, to be loaded into pages of the request's own; where there are
    any, no rows are copied. Valid until the index changes; `lock` refuses a stale one.
    """

    namespace: str
    revision: int
    pages: list[int]
    node: H | None = None
    num_node_pages: int = 0
    num_rows: int = 0
    source_page: int = -1
    source: H | None = None
    host: Sequence[HostPage] = ()

    @property
    def num_whole(self) -> int:
        """Whole pages that are known, in whichever tier."""
        return len(self.pages) + len(self.host)


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
    on_evict: Callable[[list[int]], None]
    """Called with pages that `evict` is about to free, whose content is still as it was."""

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

    def lock(self, match: Match[H], *, with_source: bool = False, priority: int = 0) -> Lock[H]:
        """Count a user of that priority on the matched path, and on the partly matched page when asked; locked pages stay."""
        ...

    def unlock(self, handle: H) -> None:
        """Drop one user from the path that ends at `handle`."""
        ...

    def insert(self, handle: H, run: bytes, pages: Sequence[int], *, priority: int = 0) -> Insertion[H]:
        """Extend a locked path by whole pages that hold `run`; the caller's user moves to the new end."""
        ...

    def insert_tail(self, handle: H, run: bytes, page: int, *, priority: int = 0) -> bool:
        """Offer a partly filled page that continues a locked path; True when the index took it."""
        ...

    def evict(self, num_pages: int) -> int:
        """Give up to `num_pages` unused pages back to the pool, in the policy's order; returns how many."""
        ...

    def end_of(self, handle: H) -> tuple[str | None, int]:
        """What a path ends in: its last page, or (page -1) the root of this namespace; None and -1 when it was flushed."""
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
