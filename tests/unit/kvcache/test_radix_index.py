"""The radix index by example: matches, splits, locks, duplicates, tails, namespaces, flushing, eviction."""

from __future__ import annotations

from typing import Any

import pytest

from sapwood.errors import ConfigError
from sapwood.kvcache import prefix_indexes
from sapwood.kvcache.pages import PagePool
from sapwood.kvcache.radix import RadixIndex
from sapwood.messages.types import pack_ids

PAGE = 4


class Shelf:
    """A pool, an index over it, and the handles in use."""

    def __init__(self, num_pages: int = 32, page_size: int = PAGE) -> None:
        self.pool = PagePool(num_pages, page_size)
        self.index = RadixIndex(self.pool)
        self.size = page_size
        self.users: list[Any] = []

    def audit(self) -> list[str]:
        return self.index.violations(self.users)

    def store(self, ids: list[int], namespace: str = "") -> list[int]:
        """Let a request come and go that computed `ids`; the pages that are now in the index."""
        index, size = self.index, self.size
        match = index.match(namespace, pack_ids(ids))
        handle = index.lock(match).handle
        num_known, num_full = len(match.pages), len(ids) // size
        fresh = self.pool.take(-(-len(ids) // size) - num_known)
        insertion = index.insert(handle, pack_ids(ids[num_known * size : num_full * size]), fresh[: num_full - num_known])
        self.pool.give_back(fresh[: len(insertion.shared)])
        rest = fresh[num_full - num_known :]
        if rest and not index.insert_tail(insertion.handle, pack_ids(ids[num_full * size :]), rest[0]):
            self.pool.give_back(rest)
        index.unlock(insertion.handle)
        assert self.pool.num_pages > 100 or self.audit() == []
        assert self.pool.num_free + index.num_pages == self.pool.num_pages
        return match.pages + fresh

    def found(self, ids: list[int], namespace: str = "") -> tuple[list[int], int, int]:
        match = self.index.match(namespace, pack_ids(ids), touch=False)
        return match.pages, match.num_rows, match.source_page


def count(first: int, num: int) -> list[int]:
    return list(range(first, first + num))


def test_whole_pages_match_and_the_next_one_row_by_row() -> None:
    shelf = Shelf()
    pages = shelf.store(count(0, 12))
    assert shelf.found(count(0, 12)) == (pages, 0, -1)
    assert shelf.found(count(0, 11)) == (pages[:2], 3, pages[2])
    assert shelf.found([*count(0, 6), 99, 99]) == (pages[:1], 2, pages[1])
    assert shelf.found([99]) == ([], 0, -1)


def test_siblings_that_differ_within_a_page_are_found_by_their_longest_beginning() -> None:
    shelf = Shelf()
    pages = {last: shelf.store([1, 2, 3, last])[0] for last in (9, 5, 7)}
    other = shelf.store([1, 2, 8, 8])[0]
    assert shelf.found([1, 2, 3, 7]) == ([pages[7]], 0, -1)
    assert shelf.found([1, 2, 8, 9])[1:] == (3, other)
    assert shelf.found([1, 2, 3, 6])[1] == 3


def test_matching_changes_nothing() -> None:
    shelf = Shelf()
    shelf.store(count(0, 16))
    before = [(bytes(node.key), list(node.pages)) for node in shelf.index.nodes()]
    shelf.index.match("", pack_ids(count(0, 7)))
    assert [(bytes(node.key), list(node.pages)) for node in shelf.index.nodes()] == before


def test_a_lock_holds_the_matched_pages_and_no_more() -> None:
    shelf = Shelf()
    shelf.store(count(0, 16))
    lock = shelf.index.lock(shelf.index.match("", pack_ids(count(0, 9))))
    assert shelf.index.num_evictable == 2
    assert shelf.index.evict(9) == 2
    assert shelf.found(count(0, 16))[0] == lock.handle.pages
    assert shelf.index.violations([lock.handle]) == []
    shelf.index.unlock(lock.handle)
    assert shelf.index.evict(9) == 2
    assert shelf.pool.num_free == shelf.pool.num_pages


def test_only_the_source_page_of_a_partial_match_is_locked_with_it() -> None:
    shelf = Shelf()
    pages = shelf.store(count(0, 16))
    match = shelf.index.match("", pack_ids(count(0, 6)))
    lock = shelf.index.lock(match, with_source=True)
    assert lock.source is not None and lock.source.pages == [pages[1]] == [match.source_page]
    assert shelf.index.num_evictable == 2
    assert shelf.index.violations([lock.handle, lock.source]) == []
    shelf.index.unlock(lock.source)
    assert shelf.index.num_evictable == 3


def test_a_stale_match_is_refused() -> None:
    shelf = Shelf()
    shelf.store(count(0, 8))
    match = shelf.index.match("", pack_ids(count(0, 8)))
    shelf.index.evict(1)
    with pytest.raises(RuntimeError, match="match again"):
        shelf.index.lock(match)


def test_a_run_that_is_known_is_reported_as_shared() -> None:
    shelf = Shelf()
    index = shelf.index
    first, second = (index.lock(index.match("", b"")).handle for _ in range(2))
    mine, theirs = shelf.pool.take(3), shelf.pool.take(2)
    one = index.insert(first, pack_ids(count(0, 12)), mine)
    two = index.insert(second, pack_ids(count(0, 8)), theirs)
    assert (one.shared, two.shared) == ([], mine[:2])
    assert index.violations([one.handle, two.handle]) == []
    three = index.insert(two.handle, pack_ids([7] * 4), shelf.pool.take(1))
    assert three.shared == []
    assert index.violations([one.handle, three.handle]) == []


def test_a_node_with_one_user_grows_in_place() -> None:
    shelf = Shelf(64)
    index = shelf.index
    handle = index.lock(index.match("", b"")).handle
    for first in range(0, 80, PAGE):
        handle = index.insert(handle, pack_ids(count(first, PAGE)), shelf.pool.take(1)).handle
    assert len(list(index.nodes())) == 2
    assert index.violations([handle]) == []


def test_tails_supersede_shorter_ones_and_are_covered_by_longer_ones() -> None:
    shelf = Shelf()
    shelf.store([1, 2, 3, 4, 5])
    shelf.store([1, 2, 3, 4, 5, 6])
    assert shelf.index.num_pages == 2
    assert shelf.found([1, 2, 3, 4, 5, 6, 7])[1] == 2
    shelf.store([1, 2, 3, 4, 5])
    assert shelf.found([1, 2, 3, 4, 5, 6, 7])[1] == 2
    shelf.store([1, 2, 3, 4, 5, 6, 7, 8, 9])
    assert shelf.index.num_pages == 3


def test_a_tail_that_is_copied_from_goes_only_afterwards() -> None:
    shelf = Shelf()
    shelf.store([1, 2])
    lock = shelf.index.lock(shelf.index.match("", pack_ids([1, 2, 9])), with_source=True)
    assert lock.source is not None
    handle = shelf.index.lock(shelf.index.match("", b"")).handle
    handle = shelf.index.insert(handle, pack_ids([1, 2, 3, 4]), shelf.pool.take(1)).handle
    assert shelf.index.num_pages == 2
    assert shelf.index.violations([lock.handle, lock.source, handle]) == []
    shelf.index.unlock(lock.source)
    assert shelf.index.num_pages == 1


def test_namespaces_never_share_and_vanish_when_empty() -> None:
    shelf = Shelf()
    shelf.store(count(0, 8), "a")
    assert shelf.found(count(0, 8), "b") == ([], 0, -1)
    shelf.store(count(0, 8), "b")
    assert shelf.index.num_pages == 4
    shelf.index.evict(4)
    assert list(shelf.index.nodes()) == []


def test_clear_frees_what_is_unused_and_hides_the_rest() -> None:
    shelf = Shelf()
    shelf.store(count(0, 16))
    handle = shelf.index.lock(shelf.index.match("", pack_ids(count(0, 8)))).handle
    shelf.users = [handle]
    shelf.index.clear()
    assert (shelf.index.num_pages, shelf.index.num_evictable) == (2, 0)
    assert shelf.found(count(0, 16)) == ([], 0, -1)
    shelf.store(count(0, 16))
    assert shelf.found(count(0, 16))[0] != []
    handle = shelf.index.insert(handle, pack_ids([5] * 4), shelf.pool.take(1)).handle
    assert not shelf.index.insert_tail(handle, pack_ids([1]), 31)
    assert shelf.index.violations([handle]) == []
    shelf.index.unlock(handle)
    assert (shelf.index.num_pages, shelf.index.num_evictable) == (4, 4)
    assert shelf.index.violations([]) == []


def test_the_coldest_leaf_goes_first_from_its_end() -> None:
    shelf = Shelf()
    old, new = shelf.store(count(0, 12)), shelf.store(count(100, 8))
    shelf.index.match("", pack_ids(count(0, 12)))
    assert shelf.index.evict(1) == 1
    assert shelf.found(count(100, 8))[0] == new[:1]
    assert shelf.index.evict(3) == 3
    assert shelf.found(count(0, 12))[0] == old[:1]
    assert shelf.index.num_evicted_total == 4
    assert shelf.index.violations([]) == []


def test_eviction_does_not_scan_the_tree() -> None:
    """Freeing one page looks at as many nodes in a large tree as in a small one."""
    looks = []
    for num_leaves in (200, 5000):
        shelf = Shelf(num_leaves, 1)
        for leaf in range(num_leaves):
            shelf.store([leaf])
        seen = 0
        key = shelf.index._queue._key

        def counting(node: object) -> int:
            nonlocal seen
            seen += 1
            return key(node)  # type: ignore[arg-type]  # noqa: B023

        shelf.index._queue._key = counting
        for _ in range(20):
            shelf.index.evict(1)
        looks.append(seen)
    assert looks[0] == looks[1] == 20


def test_superseded_leaves_do_not_pile_up_in_the_queue() -> None:
    shelf = Shelf(8, 4)
    for turn in range(3000):
        shelf.store([turn % 2, 1, 2][: 1 + turn % 3])
        shelf.index.evict(8 if turn % 3 == 2 else 0)
    assert len(shelf.index._queue._heap) < 600


@pytest.mark.parametrize("name", ["radix", "chunk"])
def test_kinds_come_from_the_registry(name: str) -> None:
    index = prefix_indexes.get(name)(PagePool(4, 1), "lru")
    assert index.num_pages == 0
    assert index.is_sharing is (name == "radix")


def test_unknown_kinds_and_policies_are_errors_that_list_the_known() -> None:
    with pytest.raises(ConfigError, match="chunk, radix"):
        prefix_indexes.get("hash-map")
    with pytest.raises(ConfigError, match="lru"):
        prefix_indexes.get("radix")(PagePool(4, 1), "mru")
