"""What the prefix index's own work takes of a real run's time.

Owns an index that measures itself; knows no scheduler but through a step log's replay. Invariant: the replay makes the plans of
the run, so every operation is the one that the run made.
"""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

from sapwood.kvcache import PagePool, prefix_indexes
from sapwood.scheduler.scheduler import Scheduler
from sapwood.scheduler.step_log import StepLogReader

MEASURED = frozenset({"match", "lock", "unlock", "insert", "insert_tail", "evict", "clear"})
TIMED = "timed"


class TimedIndex:
    """A radix index that adds up the seconds spent in its operations."""

    total_s = 0.0

    def __init__(self, pool: PagePool, eviction: str) -> None:
        self.__dict__["_inner"] = prefix_indexes.get("radix")(pool, eviction)

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._inner, name)
        return _timed(found) if name in MEASURED else found

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._inner, name, value)


def _timed(operation: Any) -> Any:
    def run(*args: Any, **more: Any) -> Any:
        began_s = time.perf_counter()
        try:
            return operation(*args, **more)
        finally:
            TimedIndex.total_s += time.perf_counter() - began_s

    return run


def tree_share(path: str) -> float:
    """The share of a logged run's step time (radix cache) that the same operations take in a replay."""
    if TIMED not in prefix_indexes:
        prefix_indexes.register(TIMED)(TimedIndex)
    log, steps_s = StepLogReader(path), 0.0
    scheduler, TimedIndex.total_s = Scheduler(log.header.limits, replace(log.header.options, cache=TIMED)), 0.0
    for turn in log:
        steps_s += sum(result.duration_s for result in turn.inputs.results)
        scheduler.step(turn.inputs)
    return TimedIndex.total_s / max(steps_s, 1e-9)
