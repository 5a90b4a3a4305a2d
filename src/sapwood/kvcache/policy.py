"""Eviction policies: in which order unlocked leaves of a prefix index go.

Owns the registry of policies; does not know the index. Invariant: a policy's key of a node does not fall while nobody uses the
node (the heap corrects keys that rose only when they surface), and equal keys are broken by order of arrival in the heap.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from sapwood.registry import Registry

SLRU_PROTECTED_HITS = 2
TLRU_TAIL_TOKENS = 512
EVERYTHING = 1 << 62


class Evictable(Protocol):
    """A node of an index, as its eviction sees it. Times are ticks of the index's logical clock, not of a wall clock.

    `num_hits` counts the requests that found the node's tokens cached; `priority` is the highest of those that used it. `end`
    is how many tokens deep the node reaches, `reach` how deep the longest run through it ever went. `is_free_leaf`: nobody uses
    the node, nothing hangs below it, and it is still part of the index.
    """

    created: int
    last_used: int
    num_hits: int
    priority: int
    reach: int
    is_queued: bool

    @property
    def end(self) -> int: ...

    @property
    def is_free_leaf(self) -> bool: ...


EvictionKey = tuple[int, int]


@dataclass(frozen=True, slots=True)
class EvictionPolicy:
    """The leaf with the smallest `key` goes first; `spare` says how many of its last tokens may go before it is ranked anew."""

    key: Callable[[Evictable], EvictionKey]
    spare: Callable[[Evictable], int] = lambda node: EVERYTHING


def tail_spare(node: Evictable) -> int:
    """Tokens that may go from the end of a leaf while whoever returns to its longest run recomputes few enough."""
    return node.end - node.reach + TLRU_TAIL_TOKENS


eviction_policies: Registry[EvictionPolicy] = Registry("eviction policy")

LRU = EvictionPolicy(lambda node: (node.last_used, 0))
"""What was matched or inserted longest ago goes first."""

FIFO = EvictionPolicy(lambda node: (node.created, 0))
"""What was computed first goes first, however it is used."""

LFU = EvictionPolicy(lambda node: (node.num_hits, node.last_used))
"""What was found by the fewest requests goes first."""

SLRU = EvictionPolicy(lambda node: (node.num_hits >= SLRU_PROTECTED_HITS, node.last_used))
"""Segmented: what was found twice is protected, the rest goes first; least recently used within each segment."""

PRIORITY = EvictionPolicy(lambda node: (node.priority, node.last_used))
"""What only requests of low priority used goes first."""

TLRU = EvictionPolicy(lambda node: (tail_spare(node) <= 0, node.last_used), tail_spare)
"""Tail-latency: the ends of long runs go first, up to `TLRU_TAIL_TOKENS` each, because recomputing so little makes nobody's
first token late; then least recently used."""

for name, policy in {"lru": LRU, "fifo": FIFO, "lfu": LFU, "slru": SLRU, "priority": PRIORITY, "tlru": TLRU}.items():
    eviction_policies.register(name)(policy)
