"""Cost models (formula, points, fit to a step log) and recorded traces."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from sapwood.core.plan import EngineLimits
from sapwood.errors import ConfigError
from sapwood.messages.types import StepInputs
from sapwood.scheduler.options import SchedulerOptions
from sapwood.scheduler.scheduler import StepOutcome
from sapwood.scheduler.step_log import FileStepLog, replay
from sapwood.simulate import CostModel, Simulation, calibrate, simulate
from sapwood.simulate.cost import load_cost
from sapwood.simulate.replica import Replica
from sapwood.simulate.simulator import Simulator
from sapwood.simulate.traces import read_trace
from sapwood.simulate.workload import VOCAB_SIZE, WorkloadOptions, workloads

LIMITS = EngineLimits(8, 4096, 400, 16, VOCAB_SIZE, ())


def test_a_cost_is_a_formula_or_a_line_through_points() -> None:
    assert CostModel(0.01, 0.001, 1e-6).seconds(10, 1000) == pytest.approx(0.021)
    table = CostModel(attended_s=1e-6, points=((1, 0.010), (64, 0.012), (1024, 0.060)))
    assert [table.seconds(n, 0) for n in (1, 64, 544, 1024, 2944)] == pytest.approx([0.010, 0.012, 0.036, 0.060, 0.156])
    assert table.seconds(64, 1000) == pytest.approx(0.013)
    for wrong in ({}, {"base_s": -1.0, "token_s": 1.0}, {"points": ((4, 0.1),)}, {"points": ((4, 0.1), (2, 0.2))}):
        with pytest.raises(ConfigError):
            CostModel(**wrong)  # type: ignore[arg-type]


def test_cost_files_are_checked(tmp_path: Path) -> None:
    path = tmp_path / "cost.json"
    path.write_text('{"points": [[1, 0.01], [100, 0.02]], "attended_s": 1e-7}')
    assert load_cost(str(path)).points == ((1, 0.01), (100, 0.02))
    path.write_text('{"base": 1}')
    with pytest.raises(ConfigError, match="base"):
        load_cost(str(path))
    with pytest.raises(ConfigError, match="cannot read"):
        load_cost(str(tmp_path / "missing"))


def test_calibrating_finds_the_cost_behind_measured_steps_and_simulating_with_it_repeats_the_run(tmp_path: Path) -> None:
    """A logged run, calibrated and simulated again, gives the same report; its plans replay."""
    truth = CostModel(base_s=0.007, token_s=0.0003, attended_s=4e-7, read_s=1e-6)
    options, path = SchedulerOptions(step_token_budget=64, request_timelines=0), tmp_path / "steps"
    sizes = WorkloadOptions(num_requests=60, rate=4.0, input_tokens=120, output_tokens=30, prefix_tokens=64)
    simulation = Simulation(limits=LIMITS, options=options, cost=truth)
    log = FileStepLog(str(path), LIMITS, options)
    simulator = Simulator(simulation, workloads.get("shared-prefix")(sizes), lambda done: None)
    _record(simulator._replicas[0], log)
    real = simulator.run()
    log.close()
    assert replay(str(path)).first_difference is None
    found = calibrate(str(path))
    assert (found.attended_s, found.read_s) == pytest.approx((4e-7, 1e-6), rel=0.02)
    for num_tokens in (1, 3, 8, 30, 64):
        assert found.seconds(num_tokens, 5000) == pytest.approx(truth.seconds(num_tokens, 5000), rel=0.01)
    again = simulate(Simulation(limits=LIMITS, options=options, cost=found), workloads.get("shared-prefix")(sizes))
    assert again.hit_rate == pytest.approx(real.hit_rate, abs=0.02)
    assert again.requests_per_s == pytest.approx(real.requests_per_s, rel=0.02)
    assert again.ttft.p50 == pytest.approx(real.ttft.p50, rel=0.05)


def test_steps_vary_as_the_measured_ones_do(tmp_path: Path) -> None:
    """Every tenth step of the logged run takes three times as long; so it is found, and so it is drawn again."""
    options, path = SchedulerOptions(step_token_budget=64, request_timelines=0), tmp_path / "steps"
    sizes = WorkloadOptions(num_requests=60, rate=4.0, input_tokens=120, output_tokens=30, prefix_tokens=64)
    varying = CostModel(base_s=0.007, token_s=0.0003, spread=(*[0.8] * 9, 2.8))
    log, simulation = FileStepLog(str(path), LIMITS, options), Simulation(limits=LIMITS, options=options, cost=varying)
    simulator = Simulator(simulation, workloads.get("shared-prefix")(sizes), lambda done: None)
    _record(simulator._replicas[0], log)
    simulator.run()
    log.close()
    found = calibrate(str(path))
    assert np.mean(found.spread) == pytest.approx(1.0) and found.spread[50] == pytest.approx(0.8, rel=0.1)
    assert 0.06 < np.mean(np.array(found.spread) > 2.0) < 0.14
    assert found.seconds(30, 0) == pytest.approx(varying.seconds(30, 0), rel=0.15)
    with pytest.raises(ConfigError, match="spread"):
        CostModel(base_s=0.01, token_s=0.001, spread=(1.0, 0.0))


def _record(replica: Replica, log: FileStepLog) -> None:
    decide = replica.scheduler.step

    def step(inputs: StepInputs) -> StepOutcome:
        outcome = decide(inputs)
        log.add(inputs, outcome.plan)
        return outcome

    replica.scheduler.step = step  # type: ignore[method-assign]


def test_calibrating_needs_measured_steps(tmp_path: Path) -> None:
    log = FileStepLog(str(tmp_path / "steps"), LIMITS, SchedulerOptions())
    log.close()
    with pytest.raises(ConfigError, match="0 measured steps"):
        calibrate(str(tmp_path / "steps"))


def test_mooncake_traces_share_what_their_hashes_share(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    path.write_text(
        '{"timestamp": 0, "input_length": 1100, "output_length": 3, "hash_ids": [0, 1, 2]}\n'
        '{"timestamp": 27482, "input_length": 1024, "output_length": 5, "hash_ids": [0, 7]}\n'
    )
    first, second = read_trace(str(path))
    assert (first.arrival_s, second.arrival_s, second.num_new) == (0.0, 27.482, 5)
    assert (len(first.prompt), len(second.prompt)) == (1100, 1024)
    same = first.prompt[:1024] == second.prompt
    assert same[:512].all() and not same[512:].any()
    report = simulate(Simulation(limits=LIMITS, options=SchedulerOptions(), cost=CostModel(0.01, 0.0001)), [first, second])
    assert report.cached_tokens == 512 and report.num_failed == 0


def test_our_own_lines_and_what_is_wrong_with_others(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    path.write_text(
        '{"arrival_s": 0.5, "input_length": 30, "output_length": 3, "prefix": "a", "prefix_length": 20, "priority": 2}\n'
        '{"arrival_s": 0.5, "input_length": 40, "output_length": 3, "prefix": "a", "prefix_length": 20}\n'
        '{"arrival_s": 0.7, "input_ids": [5, 6, 7], "output_length": 0}\n'
    )
    one, two, three = read_trace(str(path))
    assert (one.prompt[:20] == two.prompt[:20]).all() and not (one.prompt[20:30] == two.prompt[20:30]).any()
    assert one.priority == 2 and np.array_equal(three.prompt, [5, 6, 7])
    assert len(list(read_trace(str(path), 2))) == 2
    for line, wrong in (
        ('{"arrival_s": 0.1, "input_length": 3, "output_length": 1}', "before the line above"),
        ('{"input_length": 3, "output_length": 1}', "arrival_s"),
        ('{"arrival_s": 9, "input_length": 0, "output_length": 1}', "empty"),
        ('{"arrival_s": 9, "input_length": 600, "output_length": 1, "hash_ids": [1]}', "not 1 blocks"),
        ("nonsense", "line 4"),
    ):
        path.write_text("\n".join([*path.read_text().splitlines()[:3], line]))
        with pytest.raises(ConfigError, match=wrong):
            list(read_trace(str(path)))
    with pytest.raises(ConfigError, match="cannot read"):
        list(read_trace(str(tmp_path / "missing")))
