"""The radix index: a tree of token runs per namespace, split at page borders.

Owns the pages inside its nodes and the users counted on them; does not know requests, slots or plans. Invariant: a node's users
include those of its children, unlocked leaves are queued for eviction, and the counters equal the sums over the tree.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from sapwood.core.request import ID_BYTES
from sapwood.kvcache.eviction import EvictionQueue, is_evictable_leaf
from sapwood.kvcache.pages import PagePool
from sapwood.kvcache.policy import eviction_policies
from sapwood.kvcache.prefix import Insertion, Lock, Match, prefix_indexes
from sapwood.kvcache.radix_audit import tree_violations
from sapwood.kvcache.radix_node import RadixNode, num_common_tokens


class RadixIndex:
    """See `PrefixIndex` for the contract. A handle is the node at the end of a path; splits keep handles valid, because the
    node that exists keeps the end of its run and a new one takes the beginning."""

    is_sharing = True

    def __init__(self, pool: PagePool, eviction: str = "lru") -> None:
        self._pool = pool
        self._page_bytes = pool.page_size * ID_BYTES
        self._roots: dict[str, RadixNode] = {}
        self._dead_roots: list[RadixNode] = []
        self._queue = EvictionQueue(eviction_policies.get(eviction))
        self._clock = 0
        self._revision = 0
        self._num_nodes = 0
        self.num_pages = 0
        self.num_evictable = 0
        self.num_evicted_total = 0

    # ------------------------------------------------------------------------------------------------- looking up
    def match(self, namespace: str, run: bytes, *, touch: bool = True) -> Match[RadixNode]:
        """The longest known prefix of `run`; O(depth * log(siblings) + tokens compared)."""
        root = self._roots.get(namespace)
        if root is None:
            return Match(namespace, self._revision, [])
        self._clock += touch
        node, num_node_pages, position, pages = root, 0, 0, list[int]()
        while num_node_pages == len(node.pages) and len(run) - position >= self._page_bytes:
            child = node.child_at(run[position : position + self._page_bytes])
            if child is None:
                break
            node, num_node_pages = child, num_common_tokens(child.key, run, position) // self._pool.page_size
            pages += child.pages[:num_node_pages]
            position += num_node_pages * self._page_bytes
            if touch:
                child.last_used = self._clock
        source, num_rows = self._closest_page(node, num_node_pages, run[position : position + self._page_bytes])
        if source is None:
            return Match(namespace, self._revision, pages, node, num_node_pages)
        if touch:
            source.last_used = self._clock
        source_page = source.pages[num_node_pages if source is node else 0]
        return Match(namespace, self._revision, pages, node, num_node_pages, num_rows, source_page, source)

    def _closest_page(self, node: RadixNode, num_node_pages: int, page_run: bytes) -> tuple[RadixNode | None, int]:
        """The node whose page at this border begins with most of `page_run`, and how many tokens that is."""
        if not page_run:
            return None, 0
        if num_node_pages == len(node.pages):
            return node.closest_child(page_run)
        start = num_node_pages * self._page_bytes
        num_rows = num_common_tokens(node.key[start : start + self._page_bytes], page_run)
        return (node, num_rows) if num_rows else (None, 0)

    # ------------------------------------------------------------------------------------------------- users
    def lock(self, match: Match[RadixNode], *, with_source: bool = False) -> Lock[RadixNode]:
        """Count a user on the matched path; the tree is split so that not a page more is held."""
        if match.revision != self._revision:
            raise RuntimeError("a match was locked after the index changed; match again")
        if match.node is None:
            root = self._roots.setdefault(match.namespace, RadixNode(b"", [], None))
            root.namespace = match.namespace
            self._add_user(root)
            return Lock(root, None)
        end = self._split(match.node, match.num_node_pages)
        self._add_user(end)
        if not with_source or match.source is None:
            return Lock(end, None)
        source = self._split(match.source, 1)
        self._add_user(source)
        return Lock(end, source)

    def unlock(self, handle: RadixNode) -> None:
        """Drop one user from the path; what nobody uses becomes evictable, or goes at once when flushed or superseded."""
        for node in list(handle.path()):
            node.num_users -= 1
            if node.num_users == 0:
                self.num_evictable += len(node.pages)
                if node.is_dead or node.is_superseded:
                    self._remove(node)
                else:
                    self._queue_if_leaf(node)

    def _add_user(self, handle: RadixNode) -> None:
        for node in handle.path():
            self._use(node)

    def _use(self, node: RadixNode) -> None:
        node.num_users += 1
        if node.num_users == 1:
            self.num_evictable -= len(node.pages)

    # ------------------------------------------------------------------------------------------------- growing
    def insert(self, handle: RadixNode, run: bytes, pages: Sequence[int]) -> Insertion[RadixNode]:
        """Walk along what is known already, then hang the rest below (or append it to a node that only the caller uses)."""
        self._clock += 1
        node, shared = handle, list[int]()
        while len(shared) < len(pages):
            position = len(shared) * self._page_bytes
            child = node.child_at(run[position : position + self._page_bytes])
            if child is None:
                break
            node = self._split(child, num_common_tokens(child.key, run, position) // self._pool.page_size)
            node.last_used = self._clock
            self._use(node)
            shared += node.pages
        fresh = list(pages[len(shared) :])
        if fresh:
            node = self._append(node, run[len(shared) * self._page_bytes :], fresh)
        return Insertion(node, shared, True)

    def _append(self, node: RadixNode, run: bytes, pages: list[int]) -> RadixNode:
        self._revision += 1
        self.num_pages += len(pages)
        if node.num_users == 1 and not node.children and node.parent is not None:
            node.key += run
            node.pages += pages
        else:
            node = self._hang(node, run, pages)
            node.num_users = 1
        node.last_used = self._clock
        return node

    def insert_tail(self, handle: RadixNode, run: bytes, page: int) -> bool:
        """Hang a partly filled page below the path, unless a sibling holds its tokens already."""
        closest, num_rows = handle.closest_child(run)
        if handle.is_dead or num_rows * ID_BYTES == len(run):
            return False
        self._clock += 1
        self._revision += 1
        tail = self._hang(handle, run, [page])
        tail.last_used = self._clock
        self.num_pages += 1
        self.num_evictable += 1
        self._queue_if_leaf(tail)
        return True

    def _hang(self, parent: RadixNode, run: bytes, pages: list[int]) -> RadixNode:
        """A new child of `parent`; a tail that it continues has become useless and goes as soon as nobody copies from it."""
        old = parent.superseded_by(run[: self._page_bytes])
        if old is not None:
            old.is_superseded = True
            if not old.num_users:
                self._remove(old)
        child = RadixNode(run, pages, parent)
        parent.add_child(child, self._page_bytes)
        self._num_nodes += 1
        return child

    def _split(self, node: RadixNode, num_pages: int) -> RadixNode:
        """The node that ends after the first `num_pages` of `node`; new unless that is all of it."""
        if num_pages == len(node.pages):
            return node
        assert node.parent is not None
        border = num_pages * self._page_bytes
        upper = RadixNode(node.key[:border], node.pages[:num_pages], node.parent)
        upper.num_users, upper.last_used = node.num_users, node.last_used
        node.parent.replace_child(node, upper, self._page_bytes)
        node.key, node.pages, node.parent = node.key[border:], node.pages[num_pages:], upper
        upper.add_child(node, self._page_bytes)
        self._num_nodes += 1
        self._revision += 1
        return upper

    # ------------------------------------------------------------------------------------------------- shrinking
    def evict(self, num_pages: int) -> int:
        """Free pages from the ends of the coldest unlocked leaves; a leaf is cut short rather than lost whole."""
        num_freed = 0
        while num_freed < num_pages:
            leaf = self._queue.pop()
            if leaf is None:
                break
            count = min(num_pages - num_freed, len(leaf.pages))
            num_freed += count
            if count == len(leaf.pages):
                self._remove(leaf)
            else:
                self._cut(leaf, count)
        self.num_evicted_total += num_freed
        return num_freed

    def _cut(self, leaf: RadixNode, count: int) -> None:
        keep = len(leaf.pages) - count
        self._free(leaf.pages[keep:])
        del leaf.pages[keep:], leaf.key[keep * self._page_bytes :]
        self._queue_if_leaf(leaf)

    def _remove(self, node: RadixNode) -> None:
        """Take an unused node without children out of the tree."""
        self._free(node.pages)
        node.pages = []
        parent, node.parent = node.parent, None
        if parent is None:
            self._dead_roots = [root for root in self._dead_roots if root is not node]
            return
        self._num_nodes -= 1
        parent.remove_child(node, self._page_bytes)
        if not parent.num_users:
            self._queue_if_leaf(parent)

    def _free(self, pages: list[int]) -> None:
        self._pool.give_back(pages)
        self.num_pages -= len(pages)
        self.num_evictable -= len(pages)
        self._revision += 1

    def _queue_if_leaf(self, node: RadixNode) -> None:
        if is_evictable_leaf(node):
            self._queue.push(node, self._num_nodes)
        elif self._roots.get(node.namespace) is node and not node.children:
            del self._roots[node.namespace]
            self._revision += 1

    def clear(self) -> None:
        """Raise the generation: unused nodes are freed, used ones live on out of reach until their users leave."""
        self._revision += 1
        for root in list(self._roots.values()):
            for node in reversed(list(root.subtree())):
                node.is_dead = True
                if not node.num_users and node is not root:
                    self._remove(node)
            if root.num_users:
                self._dead_roots.append(root)
        self._roots = {}

    # ------------------------------------------------------------------------------------------------- audits
    def nodes(self) -> Iterator[RadixNode]:
        """Every node, roots included, those of earlier generations too."""
        for root in [*self._roots.values(), *self._dead_roots]:
            yield from root.subtree()

    def held_pages(self) -> Iterator[int]:
        """Every page that the index holds."""
        for node in self.nodes():
            yield from node.pages

    def violations(self, handles: Sequence[RadixNode]) -> list[str]:
        """What is wrong with the tree, given every handle in use."""
        return tree_violations(self, self._page_bytes, handles)


@prefix_indexes.register("radix")
def make_radix(pool: PagePool, eviction: str) -> RadixIndex:
    """The default index."""
    return RadixIndex(pool, eviction)
