"""Measured step times: from launch or from the end of the step before, and together all the time that passed."""

from __future__ import annotations

from sapwood.core.plan import EngineLimits, StepPlan, StepResult, no_copies
from sapwood.engine.null_model import null_limits
from sapwood.worker.stopwatch import Stopwatch


class HandPending:
    def __init__(self, step: int) -> None:
        self._step = step

    def done(self) -> bool:
        return True

    def wait(self) -> StepResult:
        return StepResult(self._step, [])


class HandEngine:
    def __init__(self) -> None:
        self.is_closed = False

    @property
    def limits(self) -> EngineLimits:
        return null_limits()

    def launch(self, plan: StepPlan) -> HandPending:
        return HandPending(plan.step)

    def close(self) -> None:
        self.is_closed = True


def plan(step: int) -> StepPlan:
    return StepPlan(step, (), (), no_copies(), ())


def test_times_of_overlapped_steps_add_up() -> None:
    now = [0.0]
    engine = HandEngine()
    stopwatch = Stopwatch(engine, lambda: now[0])
    now[0] = 5.0
    first = stopwatch.launch(plan(1))
    now[0] = 6.0
    second = stopwatch.launch(plan(2))
    now[0] = 8.0
    assert first.done() and first.wait() == StepResult(1, [], duration_s=3.0)
    now[0] = 9.0
    assert second.wait().duration_s == 1.0, "it began when the first one ended"
    now[0] = 20.0
    third = stopwatch.launch(plan(3))
    now[0] = 22.5
    assert third.wait().duration_s == 2.5, "a pause before the launch does not count"
    stopwatch.close()
    assert engine.is_closed
