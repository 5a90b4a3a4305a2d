"""The real loop on a virtual clock and the simulation of the same workload agree to the last moment."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest

from sapwood.bench.live import Clock, LiveRun
from sapwood.core.plan import EngineLimits, StepPlan, StepResult, UInt32Array
from sapwood.engine.null import NullEngine, NullOptions, NullPending
from sapwood.messages.types import StepInputs
from sapwood.scheduler import Scheduler, SchedulerOptions
from sapwood.scheduler.scheduler import StepOutcome
from sapwood.simulate import CostModel, Simulation, simulate
from sapwood.simulate.cost import step_size
from sapwood.simulate.workload import VOCAB_SIZE, WorkloadOptions, workloads

LIMITS = EngineLimits(8, 1024, 300, 16, 49152, ())
SIZES = WorkloadOptions(
    num_requests=40, rate=6.0, input_tokens=60, output_tokens=16, num_prefixes=3, prefix_tokens=130, num_turns=4, pause_s=0.21
)
COST = CostModel(base_s=0.007, token_s=0.0004, attended_s=4e-8, read_s=1e-6, turn_s=0.0011)


@dataclass
class VirtualTime:
    """Passes only when somebody waits."""

    now_s: float = 0.0
    free_s: float = 0.0

    def pass_by(self, seconds: float) -> None:
        self.now_s += seconds

    def clock(self) -> Clock:
        return Clock(lambda: self.now_s, self.pass_by)


@dataclass
class PacedPending:
    """A step that ends at a moment of virtual time."""

    pending: NullPending
    time: VirtualTime
    ends_s: float

    def done(self) -> bool:
        return self.ends_s <= self.time.now_s

    def wait(self) -> StepResult:
        self.time.now_s = max(self.time.now_s, self.ends_s)
        return self.pending.wait()

    def release(self, masks: UInt32Array) -> None:
        self.pending.release(masks)


@dataclass
class PacedEngine:
    """The null engine, on which steps take what the cost model says."""

    engine: NullEngine
    time: VirtualTime

    @property
    def limits(self) -> EngineLimits:
        return self.engine.limits

    def launch(self, plan: StepPlan) -> PacedPending:
        duration_s = COST.seconds(*step_size(plan)) if plan.rows else 0.0
        self.time.free_s = max(self.time.now_s, self.time.free_s) + duration_s
        return PacedPending(self.engine.launch(plan), self.time, self.time.free_s)

    def close(self) -> None:
        self.engine.close()


class UnhurriedScheduler(Scheduler):
    """Takes its time to decide on a step."""

    time: VirtualTime

    def step(self, inputs: StepInputs) -> StepOutcome:
        outcome = super().step(inputs)
        self.time.pass_by(COST.turn_s if outcome.plan is not None else 0.0)
        return outcome


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("name", ["random", "shared-prefix", "multi-turn", "agents"])
def test_a_live_run_and_its_simulation_agree(name: str, overlap: bool) -> None:
    options, time = SchedulerOptions(step_token_budget=128), VirtualTime()
    scheduler = UnhurriedScheduler(LIMITS, options)
    scheduler.time = time
    engine = PacedEngine(NullEngine(LIMITS, NullOptions()), time)
    live = LiveRun(scheduler, engine, overlap=overlap, max_concurrency=6, clock=time.clock())
    duration_s = live.run(workloads.get(name)(SIZES))
    engine.close()

    limits = EngineLimits(8, 1024, 300, 16, VOCAB_SIZE, ())
    simulation = Simulation(limits=limits, options=options, cost=COST, overlap=overlap, max_concurrency=6)
    report = simulate(simulation, workloads.get(name)(SIZES))
    assert report.duration_s == pytest.approx(duration_s, rel=1e-9)
    assert report.ttft.mean == pytest.approx(np.mean([served.heard_s[0] - served.asked_s for served in live.served]), rel=1e-9)
    assert report.e2e.mean == pytest.approx(np.mean([served.heard_s[-1] - served.asked_s for served in live.served]), rel=1e-9)
    num_cached, num_prompt = (sum(counts) for counts in zip(*((s.num_cached, len(s.prompt)) for s in live.served), strict=True))
    assert (report.cached_tokens, report.prompt_tokens) == (num_cached, num_prompt)
