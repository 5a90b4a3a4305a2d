"""Policy x cache x page size x eviction policy x preemption x tiers x mode x loop: every two values together, on traces."""

from __future__ import annotations

from typing import Any

import pytest
from null_storage import SlowStorage
from null_traces import MAX_LEN, World, judge, make_trace, play
from pairwise import pairs_of, pairwise_rows, wanted_pairs

from sapwood.core.plan import EngineLimits
from sapwood.engine.null_model import EOS_ID, VOCAB_SIZE
from sapwood.kvcache import prefix_indexes
from sapwood.kvcache.policy import eviction_policies
from sapwood.kvcache.prefetch import PREFETCH_POLICIES
from sapwood.kvcache.tiers import WRITE_POLICIES, TierOptions
from sapwood.scheduler import SchedulerOptions
from sapwood.scheduler.options import MODES
from sapwood.scheduler.policy import policies

NO_TIERS = (0, TierOptions())
FACTORS: dict[str, list[Any]] = {
    "policy": list(policies),
    "cache": list(prefix_indexes),
    "page_size": [1, 3, 4, 16],
    "eviction": list(eviction_policies),
    "preemption": [(False, None), (True, None), (True, 0), (True, 10)],
    "tiers": [
        NO_TIERS,
        *((3, TierOptions(write_policy=write)) for write in WRITE_POLICIES),
        *((64, TierOptions(write_policy="write_through", has_storage=True, prefetch=prefetch)) for prefetch in PREFETCH_POLICIES),
        (64, TierOptions(write_policy="write_back", has_storage=True)),
    ],
    "mode": list(MODES),
    "overlap": [False, True],
    "num_tokens": [72, 150],
}
ROWS = pairwise_rows(FACTORS)
SEEDS_PER_ROW = 3


def world_of(row: dict[str, Any]) -> World:
    host_pages, tiers = row["tiers"]
    pages = max(row["num_tokens"] // row["page_size"], 1)
    has_priorities, threshold = row["preemption"]
    options = SchedulerOptions(
        policy=row["policy"],
        cache=row["cache"],
        eviction=row["eviction"],
        priority_scheduling=has_priorities,
        preemption_threshold=threshold,
        tiers=tiers,
        mode=row["mode"],
        step_token_budget=16,
        aging_interval=3,
        init_new_token_ratio=0.01,
        follow_tokens=4,
        publish_tokens=8,
    )
    return World(EngineLimits(4, MAX_LEN, pages, row["page_size"], VOCAB_SIZE, (EOS_ID,), host_pages), options, row["overlap"])


def test_every_two_values_meet_and_rows_are_few() -> None:
    met = set()
    for row in ROWS:
        met |= pairs_of({name: next(i for i, v in enumerate(values) if v is row[name]) for name, values in FACTORS.items()})
    assert met == wanted_pairs(FACTORS)
    assert len(list(policies)) * len(FACTORS["tiers"]) <= len(ROWS) <= 100


def name_of(row: dict[str, Any]) -> str:
    return "-".join(str(row[name]) for name in ("policy", "cache", "eviction", "page_size"))


@pytest.mark.parametrize("row", ROWS, ids=name_of)
def test_the_laws_hold(row: dict[str, Any]) -> None:
    world = world_of(row)
    for seed in range(SEEDS_PER_ROW):
        trace = make_trace(1000 * ROWS.index(row) + seed, 12)
        storage = SlowStorage(trace.seed, loss=0.1)
        for _ in range(2 if world.options.tiers.has_storage else 1):  # the second time with a storage that holds the first
            judge(world, trace, play(world, trace, storage=storage))
