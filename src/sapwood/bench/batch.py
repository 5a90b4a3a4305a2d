"""One batch as plans: prompts are computed in chunks, then every row decodes, step after step.

Owns the plans; knows the engine's limits but no scheduler. Invariant: each request has pages of its own (or shares those of the
common prefix, which then are whole pages), and a plan can be run again after its predecessors.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import msgspec
import numpy as np

from sapwood.bench.prompts import draw_ids
from sapwood.core.plan import (
    Engine,
    EngineLimits,
    Int32Array,
    Pending,
    RowRun,
    SlotStart,
    StepPlan,
    StepResult,
    TableWrite,
    UInt32Array,
    no_copies,
)
from sapwood.core.sampling import LogprobOptions, SamplingParams
from sapwood.errors import ConfigError

PARAMS = SamplingParams(temperature=0.0, seed=0, ignore_eos=True)
FIRST_STEP = 100
"""Beyond the numbers that a start's warm-up uses."""


@dataclass(frozen=True, slots=True)
class Shape:
    """`batch` requests of `input_tokens`, each continued by `output_tokens`; of a prompt `shared_tokens` are common to all."""

    batch: int
    input_tokens: int
    output_tokens: int
    shared_tokens: int = 0


@dataclass(frozen=True, slots=True)
class Plans:
    """What to launch, in this order."""

    prefill: list[StepPlan]
    decode: list[StepPlan]


class NumberedEngine:
    """An `Engine` that numbers the steps by itself, so that a scheduler and hand-made plans can take turns on the same one.

    Costs a microsecond or two per step.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._num_launched = FIRST_STEP

    @property
    def limits(self) -> EngineLimits:
        """Those of the engine."""
        return self._engine.limits

    def launch(self, plan: StepPlan) -> NumberedPending:
        """Launch the plan under the next number."""
        self._num_launched += 1
        return NumberedPending(self._engine.launch(msgspec.structs.replace(plan, step=self._num_launched)), plan.step)

    def close(self) -> None:
        """Close the engine."""
        self._engine.close()


@dataclass(frozen=True, slots=True)
class NumberedPending:
    """A launched step that answers under the number that its plan had."""

    pending: Pending
    step: int

    def done(self) -> bool:
        """Whether `wait` would return at once."""
        return self.pending.done()

    def wait(self) -> StepResult:
        """The step's result."""
        return msgspec.structs.replace(self.pending.wait(), step=self.step)

    def release(self, masks: UInt32Array) -> None:
        """The step's."""
        self.pending.release(masks)


def run_plans(engine: Engine, plans: list[StepPlan]) -> None:
    """Launch them one ahead of the engine, as the worker's loop does, and wait for the last."""
    running = None
    for plan in plans:
        launched = engine.launch(plan)
        if running is not None:
            running.wait()
        running = launched
    if running is not None:
        running.wait()


def make_plans(limits: EngineLimits, shape: Shape, chunk: int, seed: int) -> Plans:
    """Plans of at most `chunk` prompt tokens for slots from 0 on; raises ConfigError for a batch that the engine cannot hold."""
    _check(limits, shape)
    tables = _page_tables(limits.page_size, shape)
    starts, writes = _starts(limits, shape, seed), [TableWrite(slot, 0, row) for slot, row in enumerate(tables)]
    prefill, seen = list[StepPlan](), set[int]()
    for rows in _chunks(shape, chunk):
        fresh = [row.slot for row in rows if row.slot not in seen]
        seen.update(fresh)
        prefill.append(
            StepPlan(0, tuple(starts[slot] for slot in fresh), tuple(writes[slot] for slot in fresh), no_copies(), tuple(rows))
        )
    decode = [
        StepPlan(0, (), (), no_copies(), tuple(RowRun(slot, position, 1, True) for slot in range(shape.batch)))
        for position in range(shape.input_tokens, shape.input_tokens + shape.output_tokens)
    ]
    return Plans(prefill, decode)


def _check(limits: EngineLimits, shape: Shape) -> None:
    longest = shape.input_tokens + shape.output_tokens + 1
    pages = shape.batch * -(-longest // limits.page_size)
    if not 0 <= shape.shared_tokens < shape.input_tokens or shape.shared_tokens % limits.page_size:
        raise ConfigError(f"the shared prefix must be whole pages of {limits.page_size} tokens and shorter than the prompt")
    for what, wanted, there, option in (
        ("requests at once", shape.batch, limits.num_slots, "--max-running-requests"),
        ("tokens in a request", longest, limits.max_len, "--context-length"),
        ("pages", pages, limits.num_pages, "--max-total-tokens"),
    ):
        if wanted > there:
            raise ConfigError(f"the batch needs {wanted} {what}, the engine has {there}; measure less, or raise {option}")


def _starts(limits: EngineLimits, shape: Shape, seed: int) -> list[SlotStart]:
    chance = np.random.default_rng(seed)
    shared = draw_ids(chance, shape.shared_tokens, limits.vocab_size)
    own = [draw_ids(chance, shape.input_tokens - shape.shared_tokens, limits.vocab_size) for _ in range(shape.batch)]
    return [
        SlotStart(slot, np.concatenate([shared, ids]), shape.input_tokens, PARAMS, LogprobOptions(), 0)
        for slot, ids in enumerate(own)
    ]


def _page_tables(page_size: int, shape: Shape) -> list[Int32Array]:
    """The locations of every request, those of the prefix first."""
    own_pages = -(-(shape.input_tokens - shape.shared_tokens + shape.output_tokens + 1) // page_size)
    shared = np.arange(shape.shared_tokens, dtype=np.int32)
    size = own_pages * page_size
    own = [np.arange(size, dtype=np.int32) + np.int32(shape.shared_tokens + slot * size) for slot in range(shape.batch)]
    length = shape.input_tokens + shape.output_tokens
    return [np.concatenate([shared, row])[:length] for row in own]


def _chunks(shape: Shape, chunk: int) -> Iterator[list[RowRun]]:
    """Rows of the prompt steps; the shared prefix is finished before a step reads it."""
    yield from _cut([(0, 0, shape.shared_tokens)], chunk, shape.input_tokens)
    yield from _cut([(slot, shape.shared_tokens, shape.input_tokens) for slot in range(shape.batch)], chunk, shape.input_tokens)


def _cut(spans: list[tuple[int, int, int]], chunk: int, length: int) -> Iterator[list[RowRun]]:
    rows, room = list[RowRun](), chunk
    for slot, first, end in spans:
        while first < end:
            count = min(end - first, room)
            rows.append(RowRun(slot, first, count, first + count == length))
            first, room = first + count, room - count
            if room == 0:
                yield rows
                rows, room = [], chunk
    if rows:
        yield rows
