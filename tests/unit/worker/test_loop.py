"""The two loops: the same answers, and in the overlapped one a step runs while the next is decided."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace

import numpy as np
import pytest

from sapwood.core.plan import EngineLimits, StepPlan, StepResult
from sapwood.core.sampling import SamplingParams
from sapwood.engine.null import NullEngine
from sapwood.engine.null_model import null_limits
from sapwood.errors import EngineFailed
from sapwood.messages.types import Abort, Submit, ToWorker, pack_ids
from sapwood.scheduler.options import SchedulerOptions
from sapwood.scheduler.scheduler import Scheduler
from sapwood.scheduler.step_log import NullStepLog
from sapwood.worker.core import LocalPort, WorkerCore
from sapwood.worker.grammars import NoGrammars
from sapwood.worker.process import run
from sapwood.worker.transfers import NoTransfers


class WatchedEngine:
    """A null engine that writes down what happens when."""

    def __init__(self) -> None:
        self._engine = NullEngine(null_limits(num_slots=4, max_len=256, num_pages=64))
        self.diary: list[str] = []

    @property
    def limits(self) -> EngineLimits:
        return self._engine.limits

    def launch(self, plan: StepPlan) -> WatchedPending:
        self.diary.append(f"launch {plan.step}")
        return WatchedPending(self.diary, plan.step, self._engine.launch(plan))

    def close(self) -> None:
        self._engine.close()


class WatchedPending:
    def __init__(self, diary: list[str], step: int, pending: object) -> None:
        self._diary, self._step, self._pending = diary, step, pending

    def done(self) -> bool:
        return self._pending.done()  # type: ignore[attr-defined, no-any-return]

    def wait(self) -> StepResult:
        self._diary.append(f"wait {self._step}")
        return self._pending.wait()  # type: ignore[attr-defined, no-any-return]


def submit(number: int, num_prompt: int, num_new: int) -> Submit:
    ids = np.random.default_rng(number).integers(0, 256, num_prompt)
    params = SamplingParams(max_new_tokens=num_new, temperature=0.0, seed=0, ignore_eos=True)
    return Submit(number=number, group=number, epoch=0, token_ids=pack_ids(ids), params=params)


def play(overlap: bool, arrivals: dict[int, list[ToWorker]]) -> tuple[dict[int, list[int]], dict[int, str], list[str]]:
    """Ids and endings by request, and the engine's diary."""
    engine = WatchedEngine()
    core = WorkerCore(Scheduler(engine.limits, SchedulerOptions(step_token_budget=16)), engine, overlap)
    ids: dict[int, list[int]] = {}
    ends: dict[int, str] = {}
    turn = 0
    while core.has_work or turn <= max(arrivals):
        for event in core.step(arrivals.get(turn, [])).events:
            ids.setdefault(event.number, []).extend(event.token_ids)
            if event.finish is not None:
                assert event.number not in ends
                ends[event.number] = event.finish.kind
        turn += 1
        assert turn < 1000
    core.close()
    return ids, ends, engine.diary


ARRIVALS: dict[int, list[ToWorker]] = {
    0: [submit(1, 40, 12), submit(2, 5, 9)],
    3: [submit(3, 20, 30)],
    9: [Abort([3]), submit(4, 33, 4)],
}


def test_both_loops_give_the_same_tokens_and_endings() -> None:
    plain_ids, plain_ends, _ = play(False, ARRIVALS)
    ids, ends, _ = play(True, ARRIVALS)
    assert ends == plain_ends == {1: "length", 2: "length", 3: "abort", 4: "length"}
    assert {number: ids[number] for number in (1, 2, 4)} == {number: plain_ids[number] for number in (1, 2, 4)}


@pytest.mark.parametrize("overlap", [False, True])
def test_a_step_is_waited_for_after_the_next_launch_only_when_overlapped(overlap: bool) -> None:
    _, _, diary = play(overlap, {0: [submit(1, 4, 6)]})
    launches = [entry for entry in diary if entry.startswith("launch")]
    assert [entry for entry in diary if entry.startswith("wait")] == [entry.replace("launch", "wait") for entry in launches]
    for step in range(1, len(launches)):
        was_launched_before = diary.index(f"launch {step + 1}") < diary.index(f"wait {step}")
        assert was_launched_before is overlap


@dataclass
class FullPort(LocalPort):
    """Brings its messages at the first turn, and is draining from then on."""

    draining: bool = True


@pytest.mark.parametrize("overlap", [False, True])
def test_a_law_broken_under_load_ends_the_worker(overlap: bool) -> None:
    """However long requests run: nobody waits for an idle moment."""

    def work(plant: Callable[[Scheduler], object]) -> dict[int, str]:
        engine = NullEngine(null_limits(num_slots=4, max_len=256, num_pages=64))
        scheduler = Scheduler(engine.limits, SchedulerOptions(step_token_budget=16))
        port = FullPort(lambda inputs: None, NoTransfers(), NoGrammars(), messages=[submit(1, 40, 100), submit(2, 5, 100)])
        plant(scheduler)
        run(SimpleNamespace(scheduler=scheduler, engine=engine), port, overlap, NullStepLog())  # type: ignore[arg-type]
        return {event.number: event.finish.kind for event in port.events if event.finish is not None}

    assert work(lambda scheduler: None) == {1: "length", 2: "length"}
    with pytest.raises(EngineFailed, match="the law of pages is broken: 1 pages have no holder"):
        work(lambda scheduler: scheduler._custody.pool.take(1))
    with pytest.raises(EngineFailed, match="page 3 belongs to the free list and to"):
        work(lambda scheduler: scheduler._custody.pool.give_back([3]))
