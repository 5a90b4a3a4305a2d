"""The radix index against a model that remembers every stored run in a list: random users come, share, go and are evicted."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

import pytest

from sapwood.kvcache.audit import page_violations
from sapwood.kvcache.pages import PagePool
from sapwood.kvcache.radix import RadixIndex
from sapwood.messages.types import pack_ids


@dataclass
class User:
    """Someone on a path: the ids of its whole pages, the pages, the path."""

    ids: list[int]
    pages: list[int]
    handle: Any


class World:
    """Pages hold the ids that were computed into them, so that every match can be checked for truth."""

    def __init__(self, page_size: int, seed: int) -> None:
        self.chance = random.Random(seed)
        self.size = page_size
        self.pool = PagePool(24, page_size)
        self.index = RadixIndex(self.pool)
        self.content: dict[int, list[int]] = {}
        self.users: list[User] = []

    def ids(self) -> list[int]:
        return [self.chance.randrange(2) for _ in range(self.chance.randrange(1, 4 * self.size + 2))]

    def come(self) -> None:
        wanted = self.ids()
        match = self.index.match("", pack_ids(wanted))
        self.check_match(wanted, match.pages, match.num_rows, match.source_page)
        lock = self.index.lock(match, with_source=self.chance.random() < 0.5)
        if lock.source is not None:
            assert lock.source.pages[-1] == match.source_page
            self.users.append(User([], [], lock.source))
        known = len(match.pages) * self.size
        self.users.append(User(wanted[:known], match.pages, lock.handle))

    def check_match(self, wanted: list[int], pages: list[int], num_rows: int, source_page: int) -> None:
        for number, page in enumerate(pages):
            assert self.content[page] == wanted[number * self.size : (number + 1) * self.size]
        rest = wanted[len(pages) * self.size :]
        if num_rows:
            assert self.content[source_page][:num_rows] == rest[:num_rows]
        held = list(self.index.held_pages())
        assert num_rows < self.size or self.size == 1
        assert len(held) == len(set(held))

    def extend(self) -> None:
        if not self.users:
            return
        user = self.chance.choice(self.users)
        more = [self.chance.randrange(2) for _ in range(self.size * self.chance.randrange(1, 3))]
        num_pages = len(more) // self.size
        if user.handle.parent is None and user.ids or num_pages > self.pool.num_free + self.index.num_evictable:
            return
        if len(user.handle.key) % (4 * self.size):
            return  # a tail is no place to go on from
        if num_pages > self.pool.num_free:
            self.index.evict(num_pages - self.pool.num_free)
        fresh = self.pool.take(num_pages)
        insertion = self.index.insert(user.handle, pack_ids(more), fresh)
        for number, page in enumerate(fresh):
            part = more[number * self.size : (number + 1) * self.size]
            if number < len(insertion.shared):
                assert self.content[insertion.shared[number]] == part
            else:
                self.content[page] = part
        self.pool.give_back(fresh[: len(insertion.shared)])
        user.handle = insertion.handle

    def tail(self) -> None:
        if self.size == 1 or not self.users or not self.pool.num_free:
            return
        user = self.chance.choice(self.users)
        if len(user.handle.key) % (4 * self.size):
            return
        rows = [self.chance.randrange(2) for _ in range(self.chance.randrange(1, self.size))]
        page = self.pool.take(1)
        self.content[page[0]] = rows
        if not self.index.insert_tail(user.handle, pack_ids(rows), page[0]):
            self.pool.give_back(page)

    def leave(self) -> None:
        if self.users:
            self.index.unlock(self.users.pop(self.chance.randrange(len(self.users))).handle)

    def evict(self) -> None:
        wanted, possible = self.chance.randrange(1, 4), self.index.num_evictable
        assert self.index.evict(wanted) == min(wanted, possible)

    def clear(self) -> None:
        if self.chance.random() < 0.05:
            self.index.clear()
            assert self.index.match("", pack_ids([0, 1])).pages == []

    def audit(self) -> None:
        assert page_violations(self.pool, self.index, {}, [user.handle for user in self.users]) == []


@pytest.mark.parametrize("page_size", [1, 2, 3, 4])
def test_the_index_tells_the_truth_and_keeps_its_laws(page_size: int) -> None:
    for seed in range(25):
        world = World(page_size, seed)
        moves = [
            world.come,
            world.come,
            world.extend,
            world.extend,
            world.tail,
            world.leave,
            world.leave,
            world.evict,
            world.clear,
        ]
        for _ in range(120):
            world.chance.choice(moves)()
            world.audit()
        while world.users:
            world.leave()
        world.index.evict(world.pool.num_pages)
        assert world.pool.num_free == world.pool.num_pages
        assert list(world.index.nodes()) == []
