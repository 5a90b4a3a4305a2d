#!/usr/bin/env python3
"""Simulated and real runs of the same workloads: benchmarks/simulated.py [--model NAME] [--repeats N]

The real runs drive the worker's loop in this process, with the model's real engine, and write step logs. Of each log it is
checked that a simulated replica, given its messages and step times, makes the same plans and finds the same tokens cached, and
measured how much of the run's time the prefix index's operations take. Then each run's workload is simulated freely, twice: with
a cost model fitted to the logs of all other rounds (what a user would do), and with one fitted to the run's own log, which leaves
the error of the simulation itself. Throughput and the median time to the first token are set beside the real ones.
"""

from __future__ import annotations

import argparse
import gc
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median

from tree_work import tree_share

from sapwood.bench.batch import NumberedEngine
from sapwood.bench.live import LiveRun
from sapwood.bench.machine import machine
from sapwood.bench.measure import Spread, spread
from sapwood.config.sections import Config
from sapwood.errors import SapwoodError
from sapwood.llm import configure
from sapwood.observability.logging import configure_logging
from sapwood.observability.progress import Bars
from sapwood.scheduler.scheduler import Scheduler
from sapwood.scheduler.step_log import open_step_log
from sapwood.simulate import CostModel, Simulation, calibrate, simulate
from sapwood.simulate.rehearsal import Rehearsal, rehearse
from sapwood.simulate.workload import VOCAB_SIZE, SimRequest, WorkloadOptions, workloads
from sapwood.weights import catalog
from sapwood.worker.build import build_worker
from sapwood.worker.built import BuiltWorker
from sapwood.worker.followers import Followers

TOLERANCE = 0.15
SEEDS = range(5)
"""Of the steps' variation; shown is the median."""
USUAL = WorkloadOptions(rate=4.0, pause_s=0.3, num_turns=4, seed=1)
CALIBRATION = WorkloadOptions(num_requests=36, rate=4.0, input_tokens=350, output_tokens=40, spread=0.95, seed=2)
CALIBRATION_NAME = "random"
LOADS = {
    "shared-prefix": replace(USUAL, num_requests=80, num_prefixes=4, prefix_tokens=256, input_tokens=48, output_tokens=32),
    "multi-turn": replace(USUAL, num_requests=96, rate=2.0, input_tokens=64, output_tokens=32),
    "agents": replace(USUAL, num_requests=80, rate=1.0, num_prefixes=2, prefix_tokens=384, input_tokens=64, output_tokens=24),
}
MAX_CONCURRENCY = 8
MEASURES = (("tokens_per_s", "tokens/s", 1.0), ("ttft_s", "ms to first token", 1e3), ("hit_rate", "% cached", 100.0))


@dataclass(frozen=True)
class Seen:
    """One run of one workload: completion tokens per second, median seconds to the first token, share of prompt tokens cached."""

    tokens_per_s: float
    ttft_s: float
    hit_rate: float


@dataclass(frozen=True)
class Round:
    """Each workload once, after a run of independent prompts: what was seen, and the logs."""

    seen: dict[str, Seen]
    logs: dict[str, str]


class Bench:
    """A loaded model, of which each run gets a scheduler of its own."""

    def __init__(self, built: BuiltWorker, config: Config, folder: Path) -> None:
        self._built, self._overlap, self._folder = built, config.scheduler.overlap, folder
        self._engine = NumberedEngine(built.engine)
        self._num_runs = 0

    def close(self) -> None:
        self._engine.close()

    def live(self, name: str, options: WorkloadOptions) -> tuple[Seen, str]:
        """A real run, and its step log."""
        self._num_runs += 1
        path = str(self._folder / f"{self._num_runs}")
        limits, chosen = self._built.engine.limits, self._built.options
        log = open_step_log(path, limits, chosen)
        scheduler, overlap = Scheduler(limits, chosen), self._overlap
        run = LiveRun(scheduler, self._engine, overlap=overlap, log=log, max_concurrency=MAX_CONCURRENCY)
        gc.collect()
        duration_s = run.run(generated(name, options))
        log.close()
        cached = sum(served.num_cached for served in run.served) / sum(len(served.prompt) for served in run.served)
        ttft_s = median(served.heard_s[0] - served.asked_s for served in run.served)
        return Seen(sum(len(served.ids) for served in run.served) / duration_s, ttft_s, cached), path

    def rehearse(self, path: str) -> Rehearsal:
        return rehearse(path, overlap=self._overlap)

    def simulate(self, name: str, options: WorkloadOptions, cost: CostModel, seed: int) -> Seen:
        limits = replace(self._built.engine.limits, vocab_size=VOCAB_SIZE, eos_token_ids=())
        chosen, overlap = replace(self._built.options, seed=seed), self._overlap
        simulation = Simulation(limits=limits, options=chosen, cost=cost, max_concurrency=MAX_CONCURRENCY, overlap=overlap)
        report = simulate(simulation, generated(name, options))
        return Seen(report.output_tokens_per_s, report.ttft.p50, report.hit_rate)


def generated(name: str, options: WorkloadOptions) -> list[SimRequest]:
    return list(workloads.get(name)(options))


def difference(real: Spread, simulated: float) -> tuple[str, bool]:
    """How far off the simulation is, and whether that is within the tolerance or the real runs' own spread."""
    off = simulated / real.median - 1.0
    allowed = max(TOLERANCE, (real.most - real.least) / real.median)
    is_within = abs(off) <= allowed
    return f"{off:+.1%} ({'within' if is_within else 'BEYOND'} {allowed:.0%})", is_within


def run_round(bench: Bench, number: int) -> tuple[Round, bool]:
    """Run everything once and print how the plans compare; whether all are equal."""
    seen, logs = dict[str, Seen](), dict[str, str]()
    _, logs[CALIBRATION_NAME] = bench.live(CALIBRATION_NAME, CALIBRATION)
    is_good = True
    for name, options in LOADS.items():
        seen[name], logs[name] = bench.live(name, options)
    for name in LOADS:
        again = bench.rehearse(logs[name])
        is_good &= again.first_difference is None and again.hit_rate == again.real_hit_rate
        plans = "equal" if again.first_difference is None else f"step {again.first_difference} differs"
        hits = f"{again.real_hit_rate:.2%} | {again.hit_rate:.2%} | {tree_share(logs[name]):.3%}"
        print(f"| {name} | {number} | {again.num_steps} | {plans} | {hits} |", flush=True)
    return Round(seen, logs), is_good


def describe(cost: CostModel) -> str:
    """A cost model in a line."""
    points = ", ".join(f"{num_tokens}: {seconds * 1e3:.2f}" for num_tokens, seconds in cost.points)
    prices = f"{cost.attended_s * 1e9:.0f} attended to, {cost.read_s * 1e9:.0f} read"
    return f"ms by tokens {points}; ns by position {prices}; ms of a turn {cost.turn_s * 1e3:.2f}"


def compare(bench: Bench, repeats: int) -> bool:
    """Print the tables; whether everything is as it should be."""
    print("| workload | round | steps | plans | hit rate, real | simulated | tree work |\n|---|---|---|---|---|---|---|")
    rounds, is_good = list[Round](), True
    for number in range(1, repeats + 1):
        found, is_equal = run_round(bench, number)
        rounds.append(found)
        is_good &= is_equal
    costs = [calibrate(*(log for other in rounds if other is not one for log in other.logs.values())) for one in rounds]
    print(f"\nCost model for round 1: {describe(costs[0])}")
    print("\n| workload | | real, median (range) | simulated | difference | fitted to the run itself | difference |")
    print("|---|---|---|---|---|---|---|")
    for name, options in LOADS.items():
        own_costs = [calibrate(one.logs[name]) for one in rounds]
        free, own = (
            [bench.simulate(name, options, cost, seed) for cost in models for seed in SEEDS] for models in (costs, own_costs)
        )
        for what, unit, scale in MEASURES:
            values = spread([getattr(one.seen[name], what) * scale for one in rounds])
            cells = f"{values.median:.1f} ({values.least:.1f} to {values.most:.1f})"
            for simulated in (free, own):
                middle = median(getattr(seen, what) for seen in simulated) * scale
                said, is_within = difference(values, middle)
                is_good &= is_within or simulated is own
                cells += f" | {middle:.1f} | {said}"
            print(f"| {name} | {unit} | {cells} |")
    return is_good


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2-135m-instruct", help='name or path; "null" for the fake one [%(default)s]')
    parser.add_argument("--repeats", type=int, default=3, help="rounds of real runs, at least 2 [%(default)s]")
    args = parser.parse_args(words)
    if args.repeats < 2:
        parser.error("--repeats must be at least 2: each round is predicted from the others")
    configure_logging("warning")
    config = configure(None, {"model_path": args.model})
    with Bars() as bars, tempfile.TemporaryDirectory() as folder:
        path = "null" if config.model.is_null else str(catalog.resolve(config.model.model_path, bars))
        followers = Followers(config, path)
        built = build_worker(config.model, config.engine, config.scheduler, path, followers.group, bars)
        bench = Bench(built, config, Path(folder))
        facts = machine()
        print(f"{args.model}, {type(built.engine).__name__}, {facts.cpu}, {facts.num_cores} cores, {facts.date}\n")
        try:
            return 0 if compare(bench, args.repeats) else 1
        finally:
            bench.close()
            followers.close()


if __name__ == "__main__":
    try:
        sys.exit(main())
    except SapwoodError as error:
        sys.exit(str(error))
