#!/usr/bin/env python3
"""One stream beside a steady flow of long prompts: benchmarks/latency_target.py [--model NAME] [--server] [--seconds S]

The target is twice the stream's median gap when it is alone. Then, in turn, the target is set (`--target-itl-ms`), fixed step
budgets are, and prefill-first; each case runs for the same time with two prompts open at any moment, in this process (every case
with a scheduler of its own on one loaded engine) or, with --server, through `sapwood serve`, one server for each case. Shown are
the stream's gaps as its reader saw them, the one that had not ended included, and the prompt tokens computed per second. Then
the bound: with the cost model that fits all these runs, how many prompt tokens per second there could be if every gap were
exactly as long as allowed.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import sys
import tempfile
import time
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from math import inf
from pathlib import Path

import numpy as np
from comparison.processes import free_port, running_server
from comparison.sapwood_side import command

from sapwood.bench.batch import NumberedEngine
from sapwood.bench.http import endpoint
from sapwood.bench.machine import machine
from sapwood.bench.prompts import draw_ids
from sapwood.bench.serve import Load
from sapwood.core.request import ID_BYTES
from sapwood.core.sampling import SamplingParams
from sapwood.errors import ConfigError, EngineFailed, SapwoodError
from sapwood.llm import configure
from sapwood.messages.types import Abort, Submit, ToWorker
from sapwood.observability.logging import configure_logging
from sapwood.observability.progress import Bars
from sapwood.scheduler.options import SchedulerOptions
from sapwood.scheduler.scheduler import Scheduler
from sapwood.scheduler.step_cost import attended
from sapwood.scheduler.step_log import open_step_log, read_turns
from sapwood.simulate import CostModel, calibrate
from sapwood.weights import catalog
from sapwood.worker.build import build_worker
from sapwood.worker.core import WorkerCore
from sapwood.worker.followers import Followers

PROMPT_TOKENS, STREAM_TOKENS, NUM_OPEN, LONGEST = 4000, 20, 2, 4000
BUDGETS = (2, 4, 8, 16, 512)
PAGE_TOKENS = 16
"""A server takes no smaller budget."""
ALONE, AUTO, PREFILL_FIRST = "alone", "target", "prefill-first, 512"
MAX_SHARE = 1.5
"""Of the target: what the 99th percentile may be."""
VOCAB_SIZE = 32000
STREAM_POSITION = 500
"""Where the stream is in the middle of a run, for the bound."""


@dataclass(frozen=True)
class Seen:
    """Seconds between the stream's tokens, and prompt tokens per second."""

    gaps_s: np.ndarray
    prompt_tokens_per_s: float


@dataclass(frozen=True)
class Case:
    """What is set: the step's tokens, the target in seconds (None: none), the mode; and whether prompts arrive."""

    chunk: int
    target_s: float | None = None
    mode: str = "mixed"
    has_prompts: bool = True


Runner = Callable[[Case, float, Path], Seen]
"""Runs a case for so many seconds and writes its step log."""


def gaps(moments: Sequence[float], end_s: float) -> np.ndarray:
    """Between tokens, and from the last one to the end where that is longer than usual."""
    found = np.diff(np.array(moments))
    rest_s = end_s - moments[-1]
    return np.append(found, rest_s) if not len(found) or rest_s > np.median(found) * 3 else found


def prompt_rate(log_path: Path, run_s: float) -> float:
    """Prompt tokens per second in steps that ended within `run_s` of the first long prompt's arrival, by the step log."""
    sizes, num_tokens, ends_s = dict[int, int](), 0, None
    for turn in read_turns(str(log_path)):
        inputs = turn.inputs
        if ends_s is None and any(
            isinstance(m, Submit) and len(m.token_ids) == PROMPT_TOKENS * ID_BYTES for m in inputs.messages
        ):
            ends_s = inputs.now_s + run_s
        sizes[turn.step] = turn.num_tokens - 1  # one is the stream's
        ended = [sizes[result.step] for result in inputs.results]
        num_tokens += sum(ended) if ends_s is not None and inputs.now_s <= ends_s else 0
    return num_tokens / run_s


# ----------------------------------------------------------------------------------------------------- in process
class InProcess:
    """Cases on one loaded engine."""

    def __init__(self, engine: NumberedEngine, options: SchedulerOptions, overlap: bool) -> None:
        self._engine, self._options, self._overlap = engine, options, overlap
        self._chance = np.random.default_rng(1)

    def __call__(self, case: Case, seconds: float, log_path: Path) -> Seen:
        options = replace(self._options, step_token_budget=case.chunk, target_itl_s=case.target_s, mode=case.mode)
        log = open_step_log(str(log_path), self._engine.limits, options)
        worker = WorkerCore(Scheduler(self._engine.limits, options), self._engine, self._overlap, log=log)
        gc.collect()
        moments = [self._until_first_token(worker)]
        began_s = time.perf_counter()
        number, open_prompts = 1, set[int]()
        while time.perf_counter() - began_s < seconds:
            messages = list[ToWorker]()
            while case.has_prompts and len(open_prompts) < NUM_OPEN:
                number += 1
                open_prompts.add(number)
                messages.append(self._submit(number, PROMPT_TOKENS, 1))
            for event in worker.step(messages).events:
                if event.number == 1:
                    moments.append(time.perf_counter())
                elif event.finish is not None:
                    open_prompts.discard(event.number)
        end_s = time.perf_counter()
        worker.step([Abort([1, *open_prompts])])
        while worker.has_work:
            worker.step([])
        log.close()
        return Seen(gaps(moments, end_s), prompt_rate(log_path, seconds))

    def _until_first_token(self, worker: WorkerCore) -> float:
        events = worker.step([self._submit(1, STREAM_TOKENS, LONGEST)]).events
        while not events:
            events = worker.step([]).events
        return time.perf_counter()

    def _submit(self, number: int, num_prompt: int, num_new: int) -> Submit:
        ids = draw_ids(self._chance, num_prompt, self._engine.limits.vocab_size)
        params = SamplingParams(max_new_tokens=num_new, temperature=0.0, seed=number, ignore_eos=True)
        return Submit(number, number, 0, ids.tobytes(), params)


@contextmanager
def in_process(model: str) -> Iterator[Runner]:
    """The model, loaded here."""
    config = configure(None, {"model_path": model})
    with Bars() as bars:
        path = "null" if config.model.is_null else str(catalog.resolve(config.model.model_path, bars))
        followers = Followers(config, path)
        built = build_worker(config.model, config.engine, config.scheduler, path, followers.group, bars)
    engine = NumberedEngine(built.engine)
    if engine.limits.max_len < PROMPT_TOKENS + 1:
        raise ConfigError(f"{model} has room for {engine.limits.max_len} tokens; take a model with more than {PROMPT_TOKENS}")
    try:
        yield InProcess(engine, built.options, config.scheduler.overlap)
    finally:
        engine.close()
        followers.close()


# ----------------------------------------------------------------------------------------------- through a server
def through_server(model: str) -> Runner:
    """A server for each case."""

    def run(case: Case, seconds: float, log_path: Path) -> Seen:
        port = free_port()
        words = ["serve", "--model", model, "--port", str(port), "--chunked-prefill-size", str(case.chunk)]
        words += ["--schedule-mode", case.mode, "--step-log", str(log_path)]
        words += [] if case.target_s is None else ["--target-itl-ms", f"{case.target_s * 1e3:.3f}"]
        with running_server(command(*words), port, "/ready") as url:
            seen_gaps = asyncio.run(_measure(url, case, seconds))
        return Seen(seen_gaps, prompt_rate(log_path, seconds))

    return run


async def _measure(url: str, case: Case, seconds: float) -> np.ndarray:
    load, chance = Load(endpoint(url), None, None), np.random.default_rng(1)
    stream = asyncio.create_task(load.ask(draw_ids(chance, STREAM_TOKENS, VOCAB_SIZE).tolist(), LONGEST))
    while not (load.open and load.open[0].moments):
        await asyncio.sleep(0.005)
        if stream.done():
            raise EngineFailed(f"the stream was refused; take a model with room for {STREAM_TOKENS + LONGEST} tokens")
    reader = load.open[0]

    async def prompts() -> None:
        while True:
            await load.ask(draw_ids(chance, PROMPT_TOKENS, VOCAB_SIZE).tolist(), 1)

    flow = [asyncio.create_task(prompts()) for _ in range(NUM_OPEN if case.has_prompts else 0)]
    await asyncio.sleep(seconds)
    end_s = time.perf_counter()
    for task in (stream, *flow):
        task.cancel()
    await asyncio.gather(stream, *flow, return_exceptions=True)
    if reader.error:
        raise EngineFailed(f"the stream broke off: {reader.error}")
    return gaps([moment for moment in reader.moments if moment <= end_s], end_s)


# ---------------------------------------------------------------------------------------------------------- report
@dataclass(frozen=True)
class Row:
    """All runs of a case: the 99th percentile as a share of the target, the median of the throughputs."""

    share: float
    rate: float


def show(name: str, runs: Sequence[Seen], target_s: float) -> Row:
    """Print a case."""
    all_gaps = np.concatenate([run.gaps_s for run in runs]) * 1e3
    p50, p90, p99 = np.percentile(all_gaps, (50, 90, 99))
    found = Row(float(p99) / target_s / 1e3, float(np.median([run.prompt_tokens_per_s for run in runs])))
    cells = [name, f"{len(all_gaps)}", *(f"{gap:.1f}" for gap in (p50, p90, p99, all_gaps.max()))]
    print(f"| {' | '.join(cells)} | {found.share:.2f} | {found.rate:.0f} |", flush=True)
    return found


def bound(cost: CostModel, gap_s: float, run_s: float) -> float:
    """Prompt tokens per second in a run of `run_s` when each step has as many as it can (at least one) without taking longer than
    `gap_s`: one prompt after the other, from its cheap beginning on, as in the measured runs."""
    position, num_tokens, spent_s = 0, 0, 0.0

    def seconds(count: int) -> float:
        num_attended = STREAM_POSITION + attended(position, count)
        return cost.seconds(1 + count, num_attended, STREAM_POSITION + position + count)

    while spent_s < run_s:
        counts = range(1, min(512, PROMPT_TOKENS - position) + 1)
        count = max(bisect_right(counts, gap_s, key=seconds), 1)
        spent_s += seconds(count)
        num_tokens += count
        position = (position + count) % PROMPT_TOKENS
    return num_tokens / spent_s


def measure(run: Runner, budgets: Sequence[int], seconds: float, repeats: int, folder: Path) -> None:
    """All cases in turn, then the table."""
    alone = run(Case(512, has_prompts=False), min(seconds, 5.0), folder / "alone")
    target_s = 2.0 * float(np.median(alone.gaps_s))
    cases = {AUTO: Case(512, target_s)} | {f"fixed, {budget}": Case(budget) for budget in budgets}
    cases[PREFILL_FIRST] = Case(512, mode="prefill-first")
    seen: dict[str, list[Seen]] = {name: [] for name in cases}
    for repeat in range(repeats):
        for name in list(cases)[:: 1 if repeat % 2 == 0 else -1]:
            seen[name].append(run(cases[name], seconds, folder / f"{name}-{repeat}"))
    print(f"Target: {target_s * 1e3:.1f} ms, twice the median gap alone. Gaps in ms.\n")
    print("| | gaps | p50 | p90 | p99 | max | p99 / target | prompt tokens/s |\n|---|---|---|---|---|---|---|---|")
    show(ALONE, [alone], target_s)
    rows = {name: show(name, runs, target_s) for name, runs in seen.items()}
    fixed = [row for name, row in rows.items() if name.startswith("fixed")]
    own = rows[AUTO].rate
    print(f"\nThroughput with the target: {own / max(row.rate for row in fixed):.0%} of the best fixed budget's", end="")
    keeping = [row.rate for row in fixed if row.share <= MAX_SHARE]
    print(f", {own / max(keeping):.0%} of the best that keeps p99 within {MAX_SHARE} x the target." if keeping else ".")
    cost = calibrate(*map(str, folder.iterdir()))
    print("By the cost model that fits these runs there could be, with every gap exactly", end="")
    for what, gap_s in (("the target", target_s), (f"{MAX_SHARE} x the target", MAX_SHARE * target_s)):
        most = bound(cost, gap_s, seconds)
        print(f" {what}, {most:.0f} prompt tokens/s ({own / most:.0%} of it reached);", end="")
    print(f" with steps of 512, {bound(cost, inf, seconds):.0f}.")


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2-135m-instruct", help="name or path [%(default)s]")
    parser.add_argument("--server", action="store_true", help="through `sapwood serve`")
    parser.add_argument("--seconds", type=float, default=15.0, help="of each run [%(default)s]")
    parser.add_argument("--repeats", type=int, default=2, help="runs of each case [%(default)s]")
    args = parser.parse_args(words)
    configure_logging("warning")
    facts = machine()
    print(f"{args.model}, {'server' if args.server else 'in process'}, {facts.cpu}, {facts.num_cores} cores, {facts.date}\n")
    with tempfile.TemporaryDirectory() as logs:
        if args.server:
            budgets = [budget for budget in BUDGETS if budget >= PAGE_TOKENS]
            measure(through_server(args.model), budgets, args.seconds, args.repeats, Path(logs))
            return 0
        with in_process(args.model) as run:
            measure(run, BUDGETS, args.seconds, args.repeats, Path(logs))
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except SapwoodError as error:
        sys.exit(str(error))
