"""Eviction policies: in which order unlocked leaves of the prefix index go.

Owns the registry of keys; does not know the tree. Invariant: a policy's key of a node never falls while the node lives (the
heap corrects keys that rose only when they surface), and equal keys are broken by order of arrival in the heap.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from sapwood.registry import Registry


class Evictable(Protocol):
    """What a policy may look at."""

    last_used: int


EvictionKey = Callable[[Evictable], int]
"""The leaf with the smallest key goes first."""

eviction_policies: Registry[EvictionKey] = Registry("eviction policy")


@eviction_policies.register("lru")
def least_recently_used(node: Evictable) -> int:
    """The leaf that was matched or inserted longest ago goes first (a logical clock, not a wall clock)."""
    return node.last_used
