"""A simulated replica that is given a real run's messages and step times makes the same plans, whatever the run was like."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from null_traces import Trace, World, play, trace_settings, traces, worlds

from sapwood.bench.live import LiveRun
from sapwood.core.plan import EngineLimits
from sapwood.core.sampling import LogprobOptions
from sapwood.engine.null import NullEngine, NullOptions
from sapwood.engine.null_model import VOCAB_SIZE
from sapwood.errors import ConfigError
from sapwood.messages.types import Submit
from sapwood.scheduler import Scheduler, SchedulerOptions
from sapwood.scheduler.step_log import FileStepLog, open_step_log
from sapwood.simulate.bound import every_request
from sapwood.simulate.rehearsal import rehearse
from sapwood.simulate.workload import WorkloadOptions, workloads

SMALL = WorkloadOptions(
    num_requests=24, rate=400.0, input_tokens=30, output_tokens=8, num_prefixes=3, prefix_tokens=90, num_turns=3, pause_s=0.002
)


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("name", ["shared-prefix", "multi-turn", "agents", "tree-of-thought"])
def test_a_live_run_and_its_rehearsal(name: str, overlap: bool, tmp_path: Path) -> None:
    path = str(tmp_path / "steps")
    limits, options = EngineLimits(8, 512, 60, 16, VOCAB_SIZE, ()), SchedulerOptions(step_token_budget=64, target_itl_s=0.004)
    engine = NullEngine(limits, NullOptions(step_time_s=2e-4))
    scheduler, log = Scheduler(limits, options), open_step_log(path, limits, options)
    run = LiveRun(scheduler, engine, overlap=overlap, log=log, max_concurrency=6)
    roots = list(workloads.get(name)(SMALL))
    duration_s = run.run(roots)
    log.close()
    engine.close()
    assert {id(served.request) for served in run.served} == {id(request) for request in every_request(roots)}
    assert all(len(served.ids) == served.request.num_new for served in run.served)
    assert all(served.asked_s <= served.heard_s[0] <= served.heard_s[-1] <= duration_s for served in run.served)
    rehearsed = rehearse(path, overlap=overlap)
    assert rehearsed.first_difference is None and rehearsed.num_steps == scheduler.stats().steps_total
    cached = sum(served.num_cached for served in run.served) / sum(len(served.prompt) for served in run.served)
    assert rehearsed.hit_rate == rehearsed.real_hit_rate == pytest.approx(cached) and cached > 0.1


@trace_settings(60)
@given(worlds((0,)), traces())
def test_whatever_arrives_the_rehearsal_makes_the_same_plans(
    tmp_path_factory: pytest.TempPathFactory, world: World, trace: Trace
) -> None:
    path = str(tmp_path_factory.mktemp("rehearsal") / "steps")
    driver = world.driver()
    log = FileStepLog(path, world.limits, world.options)
    decide = driver.scheduler.step

    def step(given: object) -> object:
        outcome = decide(given)  # type: ignore[arg-type]
        log.add(given, outcome.plan)  # type: ignore[arg-type]
        return outcome

    driver.scheduler.step = step  # type: ignore[method-assign,assignment]
    play(world, simplified(trace), driver=driver)
    log.close()
    rehearsed = rehearse(path, overlap=world.overlap)
    assert rehearsed.first_difference is None and rehearsed.num_steps == driver.scheduler.stats().steps_total
    assert rehearsed.hit_rate == rehearsed.real_hit_rate


def simplified(trace: Trace) -> Trace:
    """Replicas know requests by their seed, and no log-probabilities."""

    def changed(message: object) -> object:
        if not isinstance(message, Submit):
            return message
        params = msgspec.structs.replace(message.params, seed=message.number)
        return msgspec.structs.replace(message, params=params, logprobs=LogprobOptions())

    messages = {turn: [changed(message) for message in batch] for turn, batch in trace.messages.items()}
    return replace(trace, messages=messages)  # type: ignore[arg-type]


def test_what_is_not_simulated_is_refused(tmp_path: Path) -> None:
    path = str(tmp_path / "steps")
    FileStepLog(path, EngineLimits(1, 64, 8, 4, VOCAB_SIZE, (), num_host_pages=4), SchedulerOptions()).close()
    with pytest.raises(ConfigError, match="hierarchical"):
        rehearse(path, overlap=True)
