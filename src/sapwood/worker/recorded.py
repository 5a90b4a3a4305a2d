"""An engine whose launches are written to the flight record before they happen.

Owns the order of writing and launching; does not know who reads. Invariant: when a step takes the process down, the record names
that step's requests.
"""

from __future__ import annotations

from collections.abc import Callable

from sapwood.core.plan import Engine, EngineLimits, Pending, StepPlan, StepResult, UInt32Array
from sapwood.messages.flight import FlightRecorder


class RecordedPending:
    """A launched step whose end is written down."""

    __slots__ = ("_pending", "_step", "_recorder")

    def __init__(self, pending: Pending, step: int, recorder: FlightRecorder) -> None:
        self._pending = pending
        self._step = step
        self._recorder = recorder

    def done(self) -> bool:
        """Whether `wait` would return at once."""
        return self._pending.done()

    def wait(self) -> StepResult:
        """The engine's result."""
        result = self._pending.wait()
        self._recorder.ended(self._step)
        return result

    def release(self, masks: UInt32Array) -> None:
        """The engine's."""
        self._pending.release(masks)


class RecordedEngine:
    """An engine around another one. `suspects` tells the requests of launched, unconfirmed steps, the new one included."""

    def __init__(self, engine: Engine, recorder: FlightRecorder, suspects: Callable[[], list[int]]) -> None:
        self._engine = engine
        self._recorder = recorder
        self._suspects = suspects

    @property
    def limits(self) -> EngineLimits:
        """The engine's."""
        return self._engine.limits

    def launch(self, plan: StepPlan) -> RecordedPending:
        """Write down, then pass on."""
        self._recorder.launched(plan, self._suspects())
        return RecordedPending(self._engine.launch(plan), plan.step, self._recorder)

    def close(self) -> None:
        """Close both."""
        self._engine.close()
        self._recorder.close()
