"""The native engine: translates plans into native steps, and native results back; everything between runs without Python.

Knows slots, positions and locations, not requests. Invariant: a plan is checked and queued whole, so launched steps take effect
in the order of their launches, and neither launching nor computing waits for the other.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from sapwood.core.plan import EngineLimits, RowRun, StepPlan, StepResult, UInt32Array, as_ids
from sapwood.core.units import div_ceil
from sapwood.engine.native_settings import Reports, to_native_start
from sapwood.errors import EngineFailed
from sapwood.kernels.native import _native


class NativePending:
    """A launched step; see `core.plan.Pending`."""

    def __init__(self, plan: StepPlan, stream: _native.ComputeStream, ticket: int, masks: _native.Masks | None) -> None:
        self._plan, self._stream, self._ticket, self._masks = plan, stream, ticket, masks
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
            self._result = _to_result(self._plan, found)
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
        return NativePending(plan, self._stream, ticket, masks)

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

    def _to_masks(self, plan: StepPlan) -> _native.Masks | None:
        if not plan.constrained:
            return None
        return _native.Masks(as_ids(plan.constrained), div_ceil(self._limits.vocab_size, 32))

    def _to_step(self, plan: StepPlan, masks: _native.Masks | None) -> _native.Step:
        limits = self._limits
        tokens = [(start.slot, 0, start.token_ids) for start in plan.starts]
        tokens += [(write.slot, write.position, write.token_ids) for write in plan.tokens]
        locations = [(write.slot, write.position, write.locations, int(write.is_window)) for write in plan.writes]
        moves = (plan.copies, plan.saves, plan.loads, plan.window_copies)
        copies, saves, loads, window_copies = (pairs if len(pairs) else None for pairs in moves)
        starts = [to_native_start(start, limits.vocab_size, limits.eos_token_ids) for start in plan.starts]
        return _native.Step(tokens, locations, copies, _to_runs(plan.rows), starts, masks, saves, loads, window_copies)


def _to_runs(rows: Sequence[RowRun]) -> NDArray[np.int32]:
    numbers = [(row.slot, row.first, row.count, row.samples) for row in rows]
    return np.array(numbers, dtype=np.int32).reshape(-1, 4)


def _to_result(plan: StepPlan, found: _native.StepResult) -> StepResult:
    sampled = iter(found.sampled)
    token_ids = [next(sampled) if row.samples else -1 for row in plan.rows]
    if not len(found.reports):
        return StepResult(plan.step, token_ids)
    reports = Reports(found)
    return StepResult(plan.step, token_ids, reports.sampled, reports.prompts)
