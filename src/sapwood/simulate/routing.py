"""Which replica gets a request.

Owns the registry of routing policies; does not submit. Invariant: a choice depends on the replicas and the request alone (and for
round-robin on how many came before), ties going to the lowest index.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import count

from sapwood.registry import Registry
from sapwood.simulate.replica import Replica
from sapwood.simulate.workload import SimRequest

MIN_CACHED_SHARE = 0.3
MAX_LOAD_DIFFERENCE = 32
MAX_LOAD_RATIO = 1.5

Router = Callable[[Sequence[Replica], SimRequest], int]
"""The index of the replica that a request goes to."""

routers: Registry[Callable[[], Router]] = Registry("routing")


@routers.register("round-robin")
def round_robin() -> Router:
    """Each in turn."""
    turns = count()
    return lambda replicas, request: next(turns) % len(replicas)


@routers.register("least-loaded")
def least_loaded() -> Router:
    """The one with the fewest open requests."""
    return _least_loaded


@routers.register("cache-aware")
def cache_aware() -> Router:
    """The one that holds most of the prompt, if that is a good part of it and the load is balanced; else the least loaded."""
    return _cache_aware


def _least_loaded(replicas: Sequence[Replica], request: SimRequest) -> int:
    return min(range(len(replicas)), key=lambda index: replicas[index].num_open)


def _cache_aware(replicas: Sequence[Replica], request: SimRequest) -> int:
    loads = [replica.num_open for replica in replicas]
    if max(loads) - min(loads) > MAX_LOAD_DIFFERENCE and max(loads) > MAX_LOAD_RATIO * min(loads):
        return _least_loaded(replicas, request)
    run = request.prompt.tobytes()
    cached = [replica.scheduler.num_cached_tokens(request.namespace, run) for replica in replicas]
    if max(cached) < MIN_CACHED_SHARE * len(request.prompt):
        return _least_loaded(replicas, request)
    return min(range(len(replicas)), key=lambda index: (-cached[index], loads[index]))
