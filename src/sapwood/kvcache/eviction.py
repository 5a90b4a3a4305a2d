"""The queue of leaves that may be evicted.

Owns a heap with at most one live entry per node; does not know the tree. Invariant: every unlocked leaf is queued; an entry whose
node is no longer one, or whose key rose since it was queued, is put right only when it surfaces, so nothing is ever scanned.
"""

from __future__ import annotations

import heapq

from sapwood.kvcache.policy import EvictionKey
from sapwood.kvcache.radix_node import RadixNode

COMPACT_SLACK = 256


def is_evictable_leaf(node: RadixNode) -> bool:
    """Whether nobody uses the node, nothing hangs below it, and it is part of the tree (a root or a removed node is not)."""
    return node.parent is not None and not node.num_users and not node.children and bool(node.pages)


class EvictionQueue:
    """Pops unlocked leaves in the policy's order, O(log n) each."""

    def __init__(self, key: EvictionKey) -> None:
        self._key = key
        self._heap: list[tuple[int, int, RadixNode]] = []
        self._num_pushed = 0

    def push(self, node: RadixNode, num_nodes: int) -> None:
        """Queue a leaf that became evictable; `num_nodes` bounds the heap, which is cleared of dead entries when far above it."""
        if node.is_queued:
            return
        node.is_queued = True
        self._num_pushed += 1
        heapq.heappush(self._heap, (self._key(node), self._num_pushed, node))
        if len(self._heap) > 2 * num_nodes + COMPACT_SLACK:
            self._compact()

    def pop(self) -> RadixNode | None:
        """The next leaf to go, no longer queued; None when nothing is evictable."""
        while self._heap:
            key, _, node = heapq.heappop(self._heap)
            node.is_queued = False
            if not is_evictable_leaf(node):
                continue
            if self._key(node) == key:
                return node
            self.push(node, len(self._heap))
        return None

    def _compact(self) -> None:
        live = [entry for entry in self._heap if is_evictable_leaf(entry[2])]
        for _, _, node in self._heap:
            node.is_queued = False
        for _, _, node in live:
            node.is_queued = True
        self._heap = live
        heapq.heapify(self._heap)
