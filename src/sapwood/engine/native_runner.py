"""The native engine: translates plans into native steps, and native results back; everything between runs without Python.

Knows slots, positions and locations, not requests. Invariant: a plan is checked and queued whole, so launched steps take effect
in the order of their launches, and neither launching nor computing waits for the other.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from sapwood.core.plan import EngineLimits, Int32Array, RowRun, SlotStart, StepPlan, StepResult, UInt32Array, as_ids
from sapwood.core.units import div_ceil
from sapwood.engine.native_settings import Reports, reports, to_native_start
from sapwood.errors import EngineFailed
from sapwood.kernels.native import _native


class NativePending:
    """A launched step; see `core.plan.Pending`. `may_report`: whether it may have log-probabilities to report."""

    __slots__ = ("_plan", "_stream", "_ticket", "_masks", "_may_report", "_result")

    def __init__(
        self, plan: StepPlan, stream: _native.ComputeStream, ticket: int, masks: _native.Masks | None, *, may_report: bool
    ) -> None:
        self._plan, self._stream, self._ticket, self._masks = plan, stream, ticket, masks
        self._may_report = may_report
        self._result: StepResult | None = None

    def done(self) -> bool:
        """Whether `wait` would return at once."""
        return self._stream.completed >= self._ticket

    def wait(self) -> StepResult:
        """The step's result, however often it is asked for; raises EngineFailed when the step failed."""
        if self._result is None:
            found = self._stream.wait(self._ticket)
            if found.error:
                raise EngineFailed(f"step {self._plan.step} failed: {found.error}; see the server's log, then restart it")
            self._result = _to_result(self._plan, found, self._may_report)
        return self._result

    def release(self, masks: UInt32Array) -> None:
        """Let the constrained rows sample."""
        if self._masks is not None:
            self._masks.release(masks)


class NativeEngine:
    """Implements `core.plan.Engine` around a recorded program. Used by one thread; the compute stream is a native thread."""

    def __init__(
        self, limits: EngineLimits, program: _native.Program, stream: _native.ComputeStream, host: _native.HostPages
    ) -> None:
        self._limits, self._host = limits, host
        self._program = program
        self._stream: _native.ComputeStream | None = stream
        self._reporting: set[int] = set()

    @property
    def limits(self) -> EngineLimits:
        """What the scheduler has to know."""
        return self._limits

    @property
    def host_pages(self) -> NDArray[np.uint8]:
        """The tier below the KV pool, uint8 [num_host_pages, bytes of a page]. Steps fill and read it."""
        return self._host.bytes

    def launch(self, plan: StepPlan) -> NativePending:
        """Queue one step and return; raises EngineFailed, changing nothing, for a plan beyond the engine's limits."""
        if self._stream is None:
            raise EngineFailed("the compute stream is closed: the engine is shutting down; send the request to a running server")
        masks = self._to_masks(plan)
        try:
            ticket = self._stream.launch(self._program, self._to_step(plan, masks))
        except _native.NativeError as error:
            raise EngineFailed(f"step {plan.step} cannot run: {error}; report this plan as a bug, then restart") from error
        self._note_reporting(plan.starts)
        return NativePending(plan, self._stream, ticket, masks, may_report=bool(self._reporting))

    def prepare(self, plans: list[StepPlan]) -> Callable[[], None]:
        """Translate plans once; the returned function replays them back to back, without Python in between, and waits for the
        last. Their ids are not returned and no row is constrained: this is for measuring what the native program takes by
        itself."""
        stream, program, steps = self._stream, self._program, [self._to_step(plan, None) for plan in plans]
        if stream is None:
            raise EngineFailed("the compute stream is closed; prepare plans while the engine runs")

        def replay() -> None:
            for ticket in [stream.launch(program, step) for step in steps]:
                if error := stream.wait(ticket).error:
                    raise EngineFailed(f"a prepared step failed: {error}; its plans must follow those that fill their slots")

        return replay

    def close(self) -> None:
        """Wait for launched steps and let go of the stream; closing twice is harmless."""
        if self._stream is not None:
            self._stream.drain()
            self._stream = None

    def _note_reporting(self, starts: Sequence[SlotStart]) -> None:
        """Which slots report log-probabilities from this plan on: where none does, nobody needs to look for them."""
        for start in starts:
            if reports(start.logprobs):
                self._reporting.add(start.slot)
            else:
                self._reporting.discard(start.slot)

    def _to_masks(self, plan: StepPlan) -> _native.Masks | None:
        if not plan.constrained:
            return None
        return _native.Masks(as_ids(plan.constrained), div_ceil(self._limits.vocab_size, 32))

    def _to_step(self, plan: StepPlan, masks: _native.Masks | None) -> _native.Step:
        limits = self._limits
        tokens, starts = [], []
        for start in plan.starts:
            tokens.append((start.slot, 0, start.token_ids))
            starts.append(to_native_start(start, limits.vocab_size, limits.eos_token_ids))
        for token_write in plan.tokens:
            tokens.append((token_write.slot, token_write.position, token_write.token_ids))
        locations = []
        for write in plan.writes:
            locations.append((write.slot, write.position, write.locations, int(write.is_window)))
        copies, window_copies = _unless_empty(plan.copies), _unless_empty(plan.window_copies)
        saves, loads = _unless_empty(plan.saves), _unless_empty(plan.loads)
        return _native.Step(tokens, locations, copies, _to_runs(plan.rows), starts, masks, saves, loads, window_copies)


def _unless_empty(pairs: Int32Array) -> Int32Array | None:
    return pairs if len(pairs) else None


def _to_runs(rows: Sequence[RowRun]) -> Int32Array:
    numbers = [number for row in rows for number in (row.slot, row.first, row.count, row.samples)]
    return np.array(numbers, dtype=np.int32).reshape(-1, 4)


def _to_result(plan: StepPlan, found: _native.StepResult, may_report: bool) -> StepResult:
    sampled = iter(found.sampled)
    token_ids = [next(sampled) if row.samples else -1 for row in plan.rows]
    if not may_report:  # most steps; merely to ask for the arrays costs more than all of the above
        return StepResult(plan.step, token_ids)
    reported = Reports(found)
    return StepResult(plan.step, token_ids, reported.sampled, reported.prompts)
