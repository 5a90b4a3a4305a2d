"""The hash index: whole pages in one hash table, as vLLM keeps them.

Owns one block per page and the users counted on it; does not know requests, slots or plans. Invariant: a block's users include
those of its children, unlocked leaves are queued for eviction, and only whole pages are shared (a partly filled page never is).

A page is filed under the name of the block before it and its own tokens. A name is a number that no other block of this index
ever had, so the key stands for all tokens before the page and the namespace, and two runs cannot be taken for one another.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence

from sapwood.core.request import ID_BYTES
from sapwood.kvcache.eviction import EvictionQueue
from sapwood.kvcache.pages import PagePool
from sapwood.kvcache.policy import eviction_policies
from sapwood.kvcache.prefix import Insertion, Lock, Match, prefix_indexes

NAME_BYTES = 8


class Block:
    """One page of a run, below the block of the page before; a root (page -1) stands for its `namespace`. The block is filed
    under `key`, its children under its `name` and their tokens. `end` counts the tokens from the root to the end of the page; for
    the other numbers see `policy.Evictable`."""

    __slots__ = (
        "key", "name", "page", "parent", "num_users", "num_children", "end", "reach", "created", "last_used", "num_hits",
        "priority", "is_queued", "is_dead", "namespace",
    )  # fmt: skip

    def __init__(self, key: bytes, name: bytes, page: int, parent: Block | None, end: int) -> None:
        self.key = key
        self.name = name
        self.page = page
        self.parent = parent
        self.num_users = 0
        self.num_children = 0
        self.end = self.reach = end
        self.created = self.last_used = 0
        self.num_hits = 0
        self.priority = 0
        self.namespace = ""
        self.is_queued = False
        self.is_dead: bool = parent is not None and parent.is_dead

    @property
    def is_free_leaf(self) -> bool:
        """Whether nobody uses the block, nothing hangs below it, and it holds a page of the index."""
        return not self.num_users and not self.num_children and self.page >= 0

    def path(self) -> Iterator[Block]:
        """This block and its ancestors, the root last."""
        block: Block | None = self
        while block is not None:
            yield block
            block = block.parent


class HashIndex:
    """See `PrefixIndex` for the contract. A handle is the block at the end of a path."""

    is_sharing = True

    def __init__(self, pool: PagePool, eviction: str = "lru") -> None:
        self._pool = pool
        self._page_bytes = pool.page_size * ID_BYTES
        self._num_named = 0
        self._roots: dict[str, Block] = {}
        self._blocks: dict[bytes, Block] = {}
        self._dead: dict[int, Block] = {}
        self._queue: EvictionQueue[Block] = EvictionQueue(eviction_policies.get(eviction))
        self._clock = 0
        self._revision = 0
        self.num_pages = 0
        self.num_evictable = 0
        self.num_evicted_total = 0
        self.on_evict: Callable[[list[int]], None] = lambda pages: None

    # ------------------------------------------------------------------------------------------------- looking up
    def match(self, namespace: str, run: bytes, *, touch: bool = True) -> Match[Block]:
        """The longest known run of whole pages; linear in the pages that are known."""
        block = self._roots.get(namespace)
        if block is None:
            return Match(namespace, self._revision, [])
        self._clock += touch
        pages, page_bytes, find = list[int](), self._page_bytes, self._blocks.get
        for position in range(0, len(run) - page_bytes + 1, page_bytes):
            child = find(block.name + run[position : position + page_bytes])
            if child is None:
                break
            block = child
            pages.append(block.page)
            if touch:
                block.last_used = self._clock
        return Match(namespace, self._revision, pages, block, len(pages))

    def _make(self, key: bytes, page: int, parent: Block | None) -> Block:
        """A block with a name of its own."""
        self._num_named += 1
        end = 0 if parent is None else parent.end + self._pool.page_size
        block = Block(key, self._num_named.to_bytes(NAME_BYTES, "little"), page, parent, end)
        block.created = block.last_used = self._clock
        return block

    # ------------------------------------------------------------------------------------------------- users
    def lock(self, match: Match[Block], *, with_source: bool = False, priority: int = 0) -> Lock[Block]:
        """Count a user on the matched path."""
        if match.revision != self._revision:
            raise RuntimeError("a match was locked after the index changed; match again")
        end = match.node
        if end is None:
            end = self._roots.get(match.namespace)
            if end is None:
                end = self._roots[match.namespace] = self._make(b"", -1, None)
                end.namespace = match.namespace
        for block in end.path():
            self._use(block, priority)
        return Lock(end, None)

    def unlock(self, handle: Block) -> None:
        """Drop one user from the path; what nobody uses becomes evictable, or goes at once when it was flushed."""
        for block in list(handle.path()):
            block.num_users -= 1
            if block.num_users == 0:
                self.num_evictable += block.page >= 0
                self._settle(block)

    def _use(self, block: Block, priority: int) -> None:
        block.num_users += 1
        block.num_hits += 1
        block.priority = max(block.priority, priority)
        if block.num_users == 1:
            self.num_evictable -= block.page >= 0

    def _settle(self, block: Block) -> None:
        """Put a block that nobody uses where it belongs: out, or into the queue when nothing hangs below it."""
        if block.is_dead and block.page >= 0:
            self._remove(block)
        elif block.is_free_leaf:
            self._queue.push(block, len(self._blocks))
        elif block.parent is None and not block.num_children:
            self._roots = {name: root for name, root in self._roots.items() if root is not block}
            self._revision += 1

    # ------------------------------------------------------------------------------------------------- growing
    def insert(self, handle: Block, run: bytes, pages: Sequence[int], *, priority: int = 0) -> Insertion[Block]:
        """Walk along what is known already, then add a block for each page of the rest."""
        self._clock += 1
        block, shared, page_bytes = handle, list[int](), self._page_bytes
        for number, page in enumerate(pages):
            key = block.name + run[number * page_bytes : (number + 1) * page_bytes]
            child = None if block.is_dead else self._blocks.get(key)
            if child is None:
                child = self._add(key, page, block)
            else:
                child.last_used = self._clock
                shared.append(child.page)
            self._use(child, priority)
            block = child
        return Insertion(block, shared, True)

    def _add(self, key: bytes, page: int, parent: Block) -> Block:
        block = self._make(key, page, parent)
        block.num_hits = -1  # who computed it did not find it
        parent.num_children += 1
        if block.is_dead:
            self._dead[page] = block
        else:
            self._blocks[key] = block
        self._revision += 1
        self.num_pages += 1
        self.num_evictable += 1  # until its user is counted
        return block

    def insert_tail(self, handle: Block, run: bytes, page: int, *, priority: int = 0) -> bool:
        """Only whole pages have a hash."""
        return False

    # ------------------------------------------------------------------------------------------------- shrinking
    def evict(self, num_pages: int) -> int:
        """Free the pages of the coldest unlocked blocks, ends of runs first."""
        num_freed = 0
        while num_freed < num_pages:
            block = self._queue.pop()
            if block is None:
                break
            self.on_evict([block.page])
            self._remove(block)
            num_freed += 1
        self.num_evicted_total += num_freed
        return num_freed

    def _remove(self, block: Block) -> None:
        self._pool.give_back([block.page])
        self._dead.pop(block.page, None) if block.is_dead else self._blocks.pop(block.key)
        block.page = -1
        self.num_pages -= 1
        self.num_evictable -= 1
        self._revision += 1
        parent = block.parent
        if parent is not None:
            parent.num_children -= 1
            parent.reach = max(parent.reach, block.reach)
            if not parent.num_users and not parent.is_dead:
                self._settle(parent)

    def end_of(self, handle: Block) -> tuple[str | None, int]:
        """What a path ends in: its last page, or (page -1) the root of this namespace; None and -1 when it was flushed."""
        return None if handle.is_dead else handle.namespace, -1 if handle.is_dead else handle.page

    def clear(self) -> None:
        """Raise the generation: unused blocks are freed, used ones live on out of reach until their users leave."""
        self._revision += 1
        blocks, self._blocks = self._blocks, {}
        for block in [*self._roots.values(), *blocks.values()]:
            block.is_dead = True
        self._roots = {}
        self._dead |= {block.page: block for block in blocks.values()}
        for block in blocks.values():
            if not block.num_users:
                self._remove(block)

    # ------------------------------------------------------------------------------------------------- audits
    def held_pages(self) -> Iterator[int]:
        """Every page that the index holds."""
        yield from (block.page for block in self._all())

    def _all(self) -> Iterator[Block]:
        yield from self._blocks.values()
        yield from self._dead.values()

    def violations(self, handles: Sequence[Block]) -> list[str]:
        """What is wrong with the blocks, given every handle in use."""
        users = Counter(id(block) for handle in handles for block in handle.path())
        children = Counter(id(block.parent) for block in self._all())
        problems = []
        for block in [*self._all(), *self._roots.values()]:
            if block.num_users != users[id(block)] or block.num_children != children[id(block)]:
                problems.append(f"block of page {block.page}: counts {block.num_users} users, {block.num_children} children")
            if block.is_free_leaf and not block.is_queued:
                problems.append(f"block of page {block.page}: unlocked leaf that can never be evicted")
        num_unused = sum(not block.num_users for block in self._all())
        if (self.num_pages, self.num_evictable) != (len(self._blocks) + len(self._dead), num_unused):
            problems.append(f"counters say {self.num_pages} pages, {self.num_evictable} evictable; it is not so")
        return problems


@prefix_indexes.register("hash")
def make_hash_index(pool: PagePool, eviction: str) -> HashIndex:
    """vLLM's kind of prefix cache."""
    return HashIndex(pool, eviction)
