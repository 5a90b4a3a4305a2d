"""The audit finds each kind of breach."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from sapwood.kvcache.audit import page_violations
from sapwood.kvcache.chunk import NoReuse
from sapwood.kvcache.pages import PagePool
from sapwood.kvcache.radix import RadixIndex
from sapwood.messages.types import pack_ids


def shelf() -> tuple[PagePool, RadixIndex, object, list[int]]:
    """A pool of eight pages: two indexed and in use, two private, four free."""
    pool = PagePool(8, 2)
    index = RadixIndex(pool)
    handle = index.lock(index.match("", b"")).handle
    handle = index.insert(handle, pack_ids([1, 2, 3, 4]), pool.take(2)).handle
    return pool, index, handle, pool.take(2)


def test_all_is_well() -> None:
    pool, index, handle, private = shelf()
    assert page_violations(pool, index, {"request 1": private}, [handle]) == []


def leak(pool: PagePool, index: RadixIndex, private: list[int]) -> None:
    private.pop()


def double_free(pool: PagePool, index: RadixIndex, private: list[int]) -> None:
    pool.give_back(private)


def stranger(pool: PagePool, index: RadixIndex, private: list[int]) -> None:
    private.append(99)


def wrong_counter(pool: PagePool, index: RadixIndex, private: list[int]) -> None:
    index.num_evictable += 1


def wrong_users(pool: PagePool, index: RadixIndex, private: list[int]) -> None:
    next(iter(index.nodes())).num_users += 1


def short_key(pool: PagePool, index: RadixIndex, private: list[int]) -> None:
    del list(index.nodes())[1].key[-4:]


def lost_parent(pool: PagePool, index: RadixIndex, private: list[int]) -> None:
    root = next(iter(index.nodes()))
    root.children[0].parent = None


@pytest.mark.parametrize(
    ("breach", "words"),
    [
        (leak, "no holder"),
        (double_free, "belongs to the free list and to request 1"),
        (stranger, "not in the pool"),
        (wrong_counter, "counters say"),
        (wrong_users, "counts 2 users, has 1"),
        (short_key, "tokens in 2 pages"),
        (lost_parent, "does not know its parent"),
    ],
)
def test_a_breach_is_named(breach: Callable[[PagePool, RadixIndex, list[int]], None], words: str) -> None:
    pool, index, handle, private = shelf()
    breach(pool, index, private)
    assert words in " | ".join(page_violations(pool, index, {"request 1": private}, [handle]))


def test_the_index_that_shares_nothing_counts_its_users() -> None:
    index = NoReuse()
    index.lock(index.match("", b""))
    assert index.violations([None]) == []
    assert index.violations([]) == ["1 users are counted, 0 exist"]
    assert index.evict(3) == 0
    index.clear()
    index.unlock(None)
    assert index.violations([]) == []
