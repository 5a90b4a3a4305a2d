"""The simulator: virtual time that adds up, dependencies between turns, limits, routing, and the same report every time."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from math import inf
from pathlib import Path

import msgspec
import numpy as np
import pytest

from sapwood.cli.main import main
from sapwood.core.plan import EngineLimits
from sapwood.errors import ConfigError
from sapwood.scheduler.options import SchedulerOptions
from sapwood.scheduler.policy import policies
from sapwood.simulate import CostModel, Report, Simulation, simulate
from sapwood.simulate.report import Latencies
from sapwood.simulate.workload import VOCAB_SIZE, SimRequest, WorkloadOptions, workloads

COST = CostModel(base_s=0.010, token_s=0.001)


def machine(num_slots: int = 8, num_pages: int = 400, **options: object) -> Simulation:
    chosen = SchedulerOptions(request_timelines=0, **options)  # type: ignore[arg-type]
    return Simulation(limits=EngineLimits(num_slots, 4096, num_pages, 16, VOCAB_SIZE, ()), options=chosen, cost=COST)


def request(arrival_s: float, num_prompt: int, num_new: int, key: int = 0) -> SimRequest:
    return SimRequest(arrival_s, np.arange(num_prompt, dtype=np.int32) + 1000 * key, num_new)


def generated(name: str, **options: object) -> Iterator[SimRequest]:
    return workloads.get(name)(WorkloadOptions(**options))  # type: ignore[arg-type]


@pytest.mark.parametrize("overlap", [False, True])
def test_one_request_takes_the_sum_of_its_steps(overlap: bool) -> None:
    report = simulate(replace(machine(), overlap=overlap), [request(3.0, 100, 5)])
    prefill_s, decode_s = 0.110, 0.011
    assert report.ttft.mean == pytest.approx(prefill_s)
    assert report.itl.count == 4 and report.itl.mean == pytest.approx(decode_s)
    assert report.e2e.mean == pytest.approx(prefill_s + 4 * decode_s)
    assert report.duration_s == pytest.approx(3.0 + prefill_s + 4 * decode_s)
    assert (report.num_requests, report.output_tokens, report.hit_rate) == (1, 5, 0.0)


def test_requests_that_wait_for_a_slot_are_seen_to_do_so() -> None:
    report = simulate(machine(num_slots=1), [request(0.0, 16, 10, key) for key in range(4)])
    assert report.limited["slots"] > 0.6
    assert report.queue.mean == pytest.approx((0 + 1 + 2 + 3) / 4 * (0.026 + 9 * 0.011), rel=0.2)
    assert report.num_failed == 0


def test_the_next_turn_comes_after_the_answer_and_finds_it_in_the_cache() -> None:
    report = simulate(
        machine(), generated("multi-turn", num_requests=12, num_turns=4, input_tokens=64, output_tokens=32, pause_s=5.0)
    )
    assert report.num_requests == 12 and report.duration_s > 15.0
    assert report.hit_rate > 0.6, "histories, answers included, were computed before"


def test_concurrency_is_limited_outside_the_replica() -> None:
    open_now = simulate(replace(machine(), max_concurrency=2), [request(0.0, 16, 10, key) for key in range(10)])
    assert open_now.queue.p99 < 0.05 and open_now.ttft.p99 > 0.3, "clients wait, the replica's queue does not"


def test_cache_aware_routing_keeps_a_prefix_on_one_replica() -> None:
    def run(routing: str) -> Report:
        workload = generated("shared-prefix", num_requests=200, rate=5.0, num_prefixes=10, prefix_tokens=320, input_tokens=32)
        return simulate(replace(machine(num_pages=220), num_replicas=3, routing=routing), workload)

    blind, aware = run("round-robin"), run("cache-aware")
    assert aware.hit_rate > blind.hit_rate + 0.1
    assert run("least-loaded").num_requests == 200
    with pytest.raises(ConfigError, match="cache-aware, least-loaded, round-robin"):
        run("random")


@pytest.mark.parametrize("policy", list(policies))
def test_every_policy_gets_everybody_through_and_is_reproducible(policy: str) -> None:
    def run() -> Report:
        workload = generated("shared-prefix", num_requests=80, prefix_tokens=200, input_tokens=100, output_tokens=20)
        return simulate(machine(num_pages=150, policy=policy), workload)

    report = run()
    assert report.num_requests == 80 and report.num_failed == 0
    assert run() == report


def test_refused_requests_are_counted_and_everybody_else_goes_on() -> None:
    report = simulate(machine(), [request(0.0, 16, 4), request(0.0, 5000, 4, 1), request(0.1, 16, 4, 2)])
    assert (report.num_requests, report.num_failed, report.e2e.count) == (3, 1, 2)


def test_percentiles_are_within_half_a_per_cent() -> None:
    latencies, values = Latencies(), [0.001 * 1.01**i for i in range(700)]
    for value in values:
        latencies.add(value, 3)
    summary = latencies.summary()
    for found, share in ((summary.p50, 0.5), (summary.p90, 0.9), (summary.p99, 0.99)):
        assert found == pytest.approx(values[int(share * 700)], rel=0.02)
    assert summary.mean == pytest.approx(sum(values) / 700) and summary.count == 2100
    assert Latencies().summary().p99 == 0.0


def test_generated_workloads_arrive_in_order_and_at_their_rate() -> None:
    arrivals = [item.arrival_s for item in generated("random", num_requests=500, rate=20.0)]
    assert arrivals == sorted(arrivals) and arrivals[-1] == pytest.approx(25.0, rel=0.2)
    assert {item.arrival_s for item in generated("random", num_requests=5, rate=inf)} == {0.0}
    with pytest.raises(ConfigError, match="agents, few-shot, multi-turn, random, shared-prefix, tree-of-thought"):
        workloads.get("nothing")


def test_the_command_prints_a_table_and_writes_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = tmp_path / "report.json"
    words = ["simulate", "--num-requests", "30", "--input-tokens", "40", "--output-tokens", "5", "--json", str(target)]
    assert main([*words, "--schedule-policy", "lof", "--max-running-requests", "4", "--max-total-tokens", "4096"]) == 0
    page = capsys.readouterr().out
    assert "time to first token" in page and "limited by" in page
    report = msgspec.json.decode(target.read_bytes(), type=Report)
    assert report.num_requests == 30 and json.loads(target.read_text())["ttft"]["count"] == 30
    assert main(["simulate", "--replicas", "0"]) == 2 and main(["simulate", "--workload", "nothing"]) == 2
