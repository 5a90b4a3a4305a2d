"""A step log replays to the same plans, shows a difference where there is one, and survives being cut off."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from null_driver import submit
from null_traces import Trace, World, play, trace_settings, traces, worlds

from sapwood.cli.main import main
from sapwood.engine.null import NullEngine, NullOptions
from sapwood.engine.null_model import null_limits
from sapwood.errors import ConfigError
from sapwood.scheduler import Scheduler, SchedulerOptions
from sapwood.scheduler.step_log import FileStepLog, logged, open_step_log, plan_digest, read_turns, replay
from sapwood.worker.core import WorkerCore


def logged_run(path: Path, overlap: bool = True, **options: object) -> int:
    """A worker with `--step-log`; returns the number of steps."""
    limits, chosen = null_limits(num_slots=4, max_len=256, num_pages=40), SchedulerOptions(**options)  # type: ignore[arg-type]
    log = open_step_log(str(path), limits, chosen)
    core = WorkerCore(Scheduler(limits, chosen), NullEngine(limits, NullOptions(step_time_s=1e-4)), overlap, log=log)
    core.step([submit(n, [n % 90] * (40 + n), max_new_tokens=5 + n % 7, temperature=n % 2) for n in range(1, 20)])
    while core.has_work:
        core.step([])
    core.close()
    return core.scheduler.stats().steps_total


@pytest.mark.parametrize("overlap", [False, True])
def test_a_log_replays(tmp_path: Path, overlap: bool, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "steps"
    num_steps = logged_run(path, overlap, policy="random", target_itl_s=0.01)
    outcome = replay(str(path))
    assert outcome.first_difference is None and not outcome.is_torn and outcome.num_steps == num_steps > 20
    assert any(result.duration_s > 0.0 for turn in read_turns(str(path)) for result in turn.inputs.results)
    assert main(["replay", str(path)]) == 0
    assert "every plan is the same" in capsys.readouterr().out


def test_a_different_plan_is_found(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "steps"
    logged_run(path)
    turns = list(read_turns(str(path)))
    wrong = FileStepLog(str(tmp_path / "wrong"), null_limits(num_slots=4, max_len=256, num_pages=40), SchedulerOptions())
    wrong.close()
    frames = [msgspec.msgpack.encode(turn) for turn in turns]
    frames[9] = msgspec.msgpack.encode(msgspec.structs.replace(turns[9], digest=b"otherwise"))
    with (tmp_path / "wrong").open("ab") as file:
        for frame in frames:
            file.write(len(frame).to_bytes(4, "little") + frame)
    assert replay(str(tmp_path / "wrong")).first_difference == turns[9].step
    assert main(["replay", str(tmp_path / "wrong")]) == 1
    assert "differs" in capsys.readouterr().out


def test_a_log_that_was_cut_off_replays_up_to_there(tmp_path: Path) -> None:
    path = tmp_path / "steps"
    num_steps = logged_run(path)
    path.write_bytes(path.read_bytes()[:-3])
    outcome = replay(str(path))
    assert outcome.is_torn and outcome.first_difference is None and outcome.num_steps in (num_steps, num_steps - 1)


def test_what_is_no_log_is_refused(tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.write_bytes(b"hello, this is not a log")
    with pytest.raises(ConfigError, match="is not a step log"):
        replay(str(other))
    with pytest.raises(ConfigError, match="cannot read"):
        replay(str(tmp_path / "missing"))
    with pytest.raises(ConfigError, match="choose another --step-log"):
        open_step_log(str(tmp_path / "no" / "such" / "folder"), null_limits(), SchedulerOptions())


@trace_settings(60)
@given(worlds(), traces())
def test_whatever_arrives_its_inputs_give_the_same_plans_again(world: World, trace: Trace) -> None:
    inputs = []

    driver = world.driver()
    decide = driver.scheduler.step
    driver.scheduler.step = lambda given: decide(inputs.append(given) or given)  # type: ignore[method-assign,func-returns-value]
    play(world, trace, driver=driver)
    twin = Scheduler(world.limits, world.options)
    decoder = msgspec.msgpack.Decoder(type(inputs[0]))
    plans = [twin.step(decoder.decode(msgspec.msgpack.encode(given))).plan for given in inputs]
    again = [plan_digest(plan) for plan in plans if plan is not None]
    assert again == [plan_digest(plan) for plan in driver.plans]  # type: ignore[arg-type]
    assert logged(inputs[0], None).step == 0
