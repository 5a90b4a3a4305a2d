"""The hash index: whole pages only, namespaces, users, flushing; then at random against the truth of every page."""

from __future__ import annotations

import random
from typing import Any

import pytest

from sapwood.kvcache.audit import page_violations
from sapwood.kvcache.hashed import HashIndex
from sapwood.kvcache.pages import PagePool
from sapwood.messages.types import pack_ids


def stored(index: HashIndex, pool: PagePool, ids: list[int], namespace: str = "") -> list[int]:
    match = index.match(namespace, pack_ids(ids))
    handle = index.lock(match).handle
    known = len(match.pages) * pool.page_size
    fresh = pool.take((len(ids) - known) // pool.page_size)
    index.unlock(index.insert(handle, pack_ids(ids[known:]), fresh).handle)
    return match.pages + fresh


def test_only_whole_pages_of_the_same_namespace_match() -> None:
    pool = PagePool(16, 4)
    index = HashIndex(pool)
    pages = stored(index, pool, list(range(12)))
    assert index.match("", pack_ids(list(range(11)))).pages == pages[:2]
    assert index.match("", pack_ids([9, *range(1, 12)])).pages == []
    assert index.match("tenant", pack_ids(list(range(12)))).pages == []
    match = index.match("", pack_ids([0, 1, 2, 3, 4, 5]))
    assert (match.pages, match.num_rows, match.source) == (pages[:1], 0, None)


def test_two_who_computed_the_same_share_the_first_ones_pages() -> None:
    pool = PagePool(16, 2)
    index = HashIndex(pool)
    empty = index.match("", pack_ids([1, 2, 3, 4]))
    one, two = index.lock(empty).handle, index.lock(index.match("", pack_ids([1, 2, 3, 4]))).handle
    first, second = pool.take(2), pool.take(2)
    taken = index.insert(one, pack_ids([1, 2, 3, 4]), first)
    shared = index.insert(two, pack_ids([1, 2, 3, 4]), second)
    assert (taken.shared, shared.shared, shared.handle) == ([], first, taken.handle)
    assert index.evict(9) == 0
    index.unlock(taken.handle)
    index.unlock(shared.handle)
    assert index.evict(9) == 2


def test_a_stale_match_is_refused() -> None:
    pool = PagePool(4, 2)
    index = HashIndex(pool)
    match = index.match("", pack_ids([1, 2]))
    stored(index, pool, [1, 2])
    with pytest.raises(RuntimeError, match="match again"):
        index.lock(match)


def test_flushed_blocks_live_until_their_users_leave() -> None:
    pool = PagePool(4, 2)
    index = HashIndex(pool)
    stored(index, pool, [1, 2, 3, 4])
    handle = index.lock(index.match("", pack_ids([1, 2]))).handle
    index.clear()
    assert index.num_pages == 1 and index.match("", pack_ids([1, 2])).pages == []
    assert page_violations(pool, index, {}, [handle]) == []
    more = index.insert(handle, pack_ids([7, 8]), pool.take(1))
    assert index.num_pages == 2 and page_violations(pool, index, {}, [more.handle]) == []
    index.unlock(more.handle)
    assert (index.num_pages, pool.num_free) == (0, 4)


@pytest.mark.parametrize("page_size", [1, 3])
def test_random_users(page_size: int) -> None:
    for seed in range(25):
        chance = random.Random(seed)
        pool = PagePool(20, page_size)
        index = HashIndex(pool, "lfu")
        content: dict[int, list[int]] = {}
        users: list[Any] = []
        for _ in range(150):
            wanted = [chance.randrange(2) for _ in range(page_size * chance.randrange(1, 5))]
            match = index.match("", pack_ids(wanted))
            pages = [wanted[at : at + page_size] for at in range(0, len(wanted), page_size)]
            assert [content[page] for page in match.pages] == pages[: len(match.pages)]
            missing = pages[len(match.pages) :]
            handle = index.lock(match).handle
            index.evict(max(len(missing) - pool.num_free, 0))
            if len(missing) <= pool.num_free:
                fresh = pool.take(len(missing))
                content |= dict(zip(fresh, missing, strict=True))
                handle = index.insert(handle, pack_ids([token for page in missing for token in page]), fresh).handle
            users.append(handle)
            if len(users) > 3 or chance.random() < 0.3:
                index.unlock(users.pop(chance.randrange(len(users))))
            if chance.random() < 0.03:
                index.clear()
            assert page_violations(pool, index, {}, users) == []
        for user in users:
            index.unlock(user)
        index.evict(99)
        assert pool.num_free == 20 and index._roots == {}
