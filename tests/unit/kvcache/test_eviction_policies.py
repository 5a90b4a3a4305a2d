"""Eviction by policy: the order that each name promises, against a scan of all leaves, on both kinds of index."""

from __future__ import annotations

import random
from typing import Any

import pytest

from sapwood.kvcache import prefix_indexes
from sapwood.kvcache.audit import page_violations
from sapwood.kvcache.pages import PagePool
from sapwood.kvcache.policy import TLRU_TAIL_TOKENS, eviction_policies
from sapwood.messages.types import pack_ids

KINDS = ("radix", "hash")
POLICIES = ("fifo", "lfu", "lru", "priority", "slru", "tlru")


class Shop:
    """An index that whole runs are put into and looked up in."""

    def __init__(self, kind: str, policy: str, page_size: int = 1, num_pages: int = 4096) -> None:
        self.pool = PagePool(num_pages, page_size)
        self.index: Any = prefix_indexes.get(kind)(self.pool, policy)
        self.size = page_size

    def use(self, ids: list[int], priority: int = 0) -> int:
        """Find what is known of `ids`, compute the rest, leave; the number of tokens found."""
        run = pack_ids(ids)
        match = self.index.match("", run)
        handle = self.index.lock(match, priority=priority).handle
        known = len(match.pages)
        fresh = self.pool.take(len(ids) // self.size - known)
        insertion = self.index.insert(handle, run[known * self.size * 4 :], fresh, priority=priority)
        assert insertion.shared == []
        self.index.unlock(insertion.handle)
        return known * self.size

    def known(self, ids: list[int]) -> int:
        return len(self.index.match("", pack_ids(ids), touch=False).pages) * self.size


def run_of(number: int, length: int = 4) -> list[int]:
    return [number * 1000 + position for position in range(length)]


def survivors(kind: str, policy: str, uses: list[tuple[int, int]], num_evicted: int) -> set[int]:
    """Which runs of four tokens are still whole after `uses` (number, priority) and an eviction."""
    shop = Shop(kind, policy)
    for number, priority in uses:
        shop.use(run_of(number), priority)
    assert shop.index.evict(num_evicted) == num_evicted
    return {number for number, _ in uses if shop.known(run_of(number)) == 4}


@pytest.mark.parametrize("kind", KINDS)
def test_each_policy_keeps_what_it_promises(kind: str) -> None:
    uses = [(1, 0), (1, 0), (1, 0), (2, 0), (2, 0), (3, 5), (4, 0), (1, 0), (2, 0), (4, 0), (5, 1)]
    assert survivors(kind, "lru", uses, 4) == {1, 2, 4, 5}  # 3 was used longest ago
    assert survivors(kind, "fifo", uses, 4) == {2, 3, 4, 5}
    assert survivors(kind, "lfu", uses, 8) == {1, 2, 4}
    assert survivors(kind, "slru", uses, 12) == {1, 2}  # two hits protect
    assert survivors(kind, "priority", uses, 12) == {3, 5}


@pytest.mark.parametrize("kind", KINDS)
def test_tlru_takes_the_ends_of_long_runs_first(kind: str) -> None:
    shop, long, short = Shop(kind, "tlru", 16), run_of(1, 4 * TLRU_TAIL_TOKENS), run_of(9, 160)
    shop.use(short)
    shop.use(long)
    shop.use(run_of(5, TLRU_TAIL_TOKENS))
    assert shop.index.evict((160 + TLRU_TAIL_TOKENS) // 16) == (160 + TLRU_TAIL_TOKENS) // 16
    assert shop.known(short) == 0  # cheap to compute again, and oldest
    assert shop.known(long) == 3 * TLRU_TAIL_TOKENS  # its returning user recomputes no more than the tail
    assert shop.known(run_of(5, TLRU_TAIL_TOKENS)) == TLRU_TAIL_TOKENS


@pytest.mark.parametrize("policy", POLICIES)
def test_every_eviction_takes_a_leaf_of_least_key(policy: str) -> None:
    """Against a scan of all leaves, with runs that share beginnings and are used at random."""
    chance = random.Random(policy)
    key = eviction_policies.get(policy).key
    shop = Shop("hash", policy, num_pages=1 << 15)
    for _ in range(400):
        length = chance.randrange(1, 40)
        ids = [1] * chance.randrange(10) + [2] * chance.randrange(10) + [chance.randrange(3) for _ in range(length)]
        shop.use(ids, priority=chance.randrange(3))
        if chance.random() < 0.5:
            leaves = [block for block in shop.index._all() if block.is_free_leaf]
            least = min(key(block) for block in leaves)
            before = {block.page: key(block) for block in leaves}
            held = set(shop.index.held_pages())
            assert shop.index.evict(1) == 1
            (gone,) = held - set(shop.index.held_pages())
            assert before[gone] == least
    assert page_violations(shop.pool, shop.index, {}, []) == []


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("policy", POLICIES)
def test_work_per_evicted_leaf_does_not_grow_with_the_index(kind: str, policy: str) -> None:
    """Keys looked at, counted: at most a few for each leaf that goes, however many stay."""
    for num_runs in (100, 1000):
        shop = Shop(kind, policy)
        for number in range(num_runs):
            shop.use(run_of(number))
        looked, key = 0, shop.index._queue._key

        def counting(node: Any) -> Any:
            nonlocal looked
            looked += 1
            return key(node)  # noqa: B023 - called in this turn only

        shop.index._queue._key = counting
        assert shop.index.evict(40) == 40
        assert looked <= 3 * 40
