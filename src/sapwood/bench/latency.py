"""How long one batch takes, prompt and decode, and what the worker's loop adds to the bare program.

Drives an engine at its seam, a scheduler's loop around the same engine, and where the engine has a prepared form of its steps
those alone. Invariant: all variants of a repeat decode the same number of rows over contexts of the same length.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Protocol, runtime_checkable

import msgspec
import numpy as np
from rich.table import Table

from sapwood.bench.batch import PARAMS, NumberedEngine, Plans, Shape, make_plans, run_plans
from sapwood.bench.machine import Machine, machine
from sapwood.bench.measure import Samples, Spread, alternate, ratios, spread
from sapwood.bench.prompts import draw_ids
from sapwood.bench.show import grid, spread_cells
from sapwood.config.sections import Config
from sapwood.core.garbage import spare_the_living
from sapwood.core.plan import Engine, StepPlan
from sapwood.errors import ConfigError, EngineFailed
from sapwood.messages.types import Submit, ToWorker, pack_ids
from sapwood.observability.progress import ProgressCallback
from sapwood.worker.build import build_worker
from sapwood.worker.built import BuiltWorker
from sapwood.worker.core import WorkerCore
from sapwood.worker.followers import Followers

SEAM, SHARED, BARE, LOOP = "engine", "engine, shared prefix", "bare program", "worker loop"


@runtime_checkable
class PreparingEngine(Protocol):
    """An engine whose plans can be translated once and replayed without Python in between."""

    def prepare(self, plans: list[StepPlan]) -> Callable[[], None]:
        """A function that runs the plans and returns when the last one has finished."""
        ...


class LatencyReport(msgspec.Struct, frozen=True, kw_only=True):
    """Seconds for the whole prompt phase and for one decode step, by variant; what the variants are to one another."""

    machine: Machine
    model: str
    engine: str
    threads: int
    batch: int
    input_tokens: int
    output_tokens: int
    shared_tokens: int
    prefill_s: dict[str, Spread]
    decode_step_s: dict[str, Spread]
    loop_over_bare: Spread | None
    engine_over_bare: Spread | None
    private_over_shared: Spread | None


@runtime_checkable
class WrappingEngine(Protocol):
    """An engine that passes steps on to another one."""

    @property
    def inner(self) -> Engine:
        """The other one."""


def innermost(engine: Engine) -> Engine:
    """The engine that computes."""
    while isinstance(engine, WrappingEngine):
        engine = engine.inner
    return engine


class Bench:
    """A loaded worker and the batch that is measured on it."""

    def __init__(self, built: BuiltWorker, worker: WorkerCore, shape: Shape) -> None:
        limits = built.engine.limits
        chunk = built.options.step_token_budget or limits.max_len
        self._bare_engine, self._worker, self._shape = innermost(built.engine), worker, shape
        self._plans = make_plans(limits, Shape(shape.batch, shape.input_tokens, shape.output_tokens), chunk, seed=1)
        self._shared = make_plans(limits, shape, chunk, seed=2) if shape.shared_tokens else None
        self._num_loops = 0

    def cases(self) -> dict[str, Callable[[], dict[str, float]]]:
        """What can be measured here, by name."""
        engine = self._bare_engine
        found: dict[str, Callable[[], dict[str, float]]] = {SEAM: lambda: self._at_the_seam(self._plans)}
        if self._shared is not None:
            shared = self._shared
            found[SHARED] = lambda: self._at_the_seam(shared)
        if isinstance(engine, PreparingEngine):
            replay = engine.prepare(self._plans.decode)
            found[BARE] = lambda: self._bare(replay)
        found[LOOP] = self._loop
        return found

    def _at_the_seam(self, plans: Plans) -> dict[str, float]:
        engine, began_s = self._worker.engine, time.perf_counter()
        run_plans(engine, plans.prefill)
        filled_s = time.perf_counter()
        run_plans(engine, plans.decode)
        return {"prefill_s": filled_s - began_s, "decode_step_s": (time.perf_counter() - filled_s) / len(plans.decode)}

    def _bare(self, replay: Callable[[], None]) -> dict[str, float]:
        run_plans(self._worker.engine, self._plans.prefill)
        began_s = time.perf_counter()
        replay()
        return {"decode_step_s": (time.perf_counter() - began_s) / len(self._plans.decode)}

    def _loop(self) -> dict[str, float]:
        """Requests through the scheduler. A decode step is the time between turns that brought a token for every request;
        as many are counted as the other cases have, so that all see contexts of the same lengths."""
        began_s, moments = time.perf_counter(), list[float]()
        news = self._worker.step(self._submissions())
        waits, num_events, filled_s = set(range(self._shape.batch)), 0, 0.0
        while self._worker.has_work:
            now_s = time.perf_counter()
            failed = [event.finish for event in news.events if event.finish is not None and event.finish.kind == "error"]
            if failed:
                raise EngineFailed(f"a measured request failed: {failed[0].message}")
            num_events += len(news.events)
            waits -= {event.number % self._shape.batch for event in news.events}
            if not waits:
                filled_s = filled_s or now_s
                if len(news.events) == self._shape.batch and len(moments) <= self._shape.output_tokens:
                    moments.append(now_s)
            news = self._worker.step([])
        if len(moments) < 2:
            raise ConfigError("the batch never decoded as a whole; give more --output-tokens than the prompts take steps")
        return {"prefill_s": filled_s - began_s, "decode_step_s": (moments[-1] - moments[0]) / (len(moments) - 1)}

    def _submissions(self) -> list[ToWorker]:
        """New prompts in a namespace of their own, so that nothing comes from the cache."""
        self._num_loops += 1
        chance, shape = np.random.default_rng(self._num_loops), self._shape
        params = msgspec.structs.replace(PARAMS, max_new_tokens=shape.output_tokens + shape.batch)
        vocab_size, first = self._worker.engine.limits.vocab_size, self._num_loops * shape.batch
        return [
            Submit(
                number=number,
                group=number,
                epoch=0,
                token_ids=pack_ids(draw_ids(chance, shape.input_tokens, vocab_size).tolist()),
                params=params,
                namespace=f"bench {self._num_loops}",
            )
            for number in range(first, first + shape.batch)
        ]


def measure_latency(config: Config, path: str, shape: Shape, repeats: int, report: ProgressCallback) -> LatencyReport:
    """Load the model, measure, release it. Raises ConfigError for a batch that does not fit and for several ranks."""
    if config.engine.tp_size > 1:
        raise ConfigError("the latency bench drives one rank; leave --tp-size out", param="tp_size")
    followers = Followers(config, path)
    built = build_worker(config.model, config.engine, config.scheduler, path, followers.group, report)
    worker = WorkerCore(built.scheduler, NumberedEngine(built.engine), config.scheduler.overlap, transfers=built.transfers)
    spare_the_living()  # as a worker does
    try:
        bench = Bench(built, worker, shape)
        return summarise(config, built.engine, shape, alternate(bench.cases(), repeats))
    finally:
        worker.close()
        followers.close()


def summarise(config: Config, engine: Engine, shape: Shape, found: dict[str, Samples]) -> LatencyReport:
    """The report of what `alternate` collected."""

    def over(one: str, other: str) -> Spread | None:
        return ratios(found[one]["decode_step_s"], found[other]["decode_step_s"]) if other in found and one in found else None

    return LatencyReport(
        machine=machine(),
        model=Path(config.model.model_path).name,
        engine=type(innermost(engine)).__name__,
        threads=config.engine.cpu_threads,
        batch=shape.batch,
        input_tokens=shape.input_tokens,
        output_tokens=shape.output_tokens,
        shared_tokens=shape.shared_tokens,
        prefill_s={name: spread(values["prefill_s"]) for name, values in found.items() if "prefill_s" in values},
        decode_step_s={name: spread(values["decode_step_s"]) for name, values in found.items()},
        loop_over_bare=over(LOOP, BARE),
        engine_over_bare=over(SEAM, BARE),
        private_over_shared=over(SEAM, SHARED),
    )


def latency_tables(report: LatencyReport) -> list[Table]:
    """The report for people."""
    prompt_tokens, rows = report.batch * report.input_tokens, []
    for name, found in report.prefill_s.items():
        rows.append((f"prefill, {name}", *spread_cells(found, "seconds"), f"{prompt_tokens / found.median:,.0f}"))
    for name, found in report.decode_step_s.items():
        rows.append((f"decode step, {name}", *spread_cells(found, "seconds"), f"{report.batch / found.median:,.0f}"))
    pairs = [
        (name, *spread_cells(found))
        for name, found in (
            ("worker loop / bare program", report.loop_over_bare),
            ("engine / bare program", report.engine_over_bare),
            ("private / shared pages", report.private_over_shared),
        )
        if found is not None
    ]
    title = f"{report.model}, {report.engine}, {report.threads} threads, batch {report.batch} x {report.input_tokens} tokens"
    return [grid((title, "median", "range", "tokens/s"), rows), *([grid(("ratio", "median", "range"), pairs)] if pairs else [])]
