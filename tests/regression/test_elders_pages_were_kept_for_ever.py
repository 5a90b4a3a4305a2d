"""A request that became an elder left pages of an elder's priority behind, which `priority` eviction never gave up."""

from __future__ import annotations

from dataclasses import replace

from sapwood.core.plan import EngineLimits
from sapwood.scheduler.options import SchedulerOptions
from sapwood.simulate import CostModel, Simulation, simulate
from sapwood.simulate.workload import VOCAB_SIZE, WorkloadOptions, workloads


def test_without_priorities_priority_eviction_is_lru() -> None:
    limits = EngineLimits(8, 4096, 150, 16, VOCAB_SIZE, ())
    lru = Simulation(limits=limits, options=SchedulerOptions(eviction="lru"), cost=CostModel(base_s=0.01, token_s=0.001))
    by_priority = replace(lru, options=SchedulerOptions(eviction="priority"))
    options = WorkloadOptions(num_requests=150, num_prefixes=10, prefix_tokens=200, input_tokens=60, output_tokens=10)
    found = [simulate(one, workloads.get("shared-prefix")(options)) for one in (lru, by_priority)]
    assert found[0].num_evicted_pages > 100 and found[0] == found[1]
