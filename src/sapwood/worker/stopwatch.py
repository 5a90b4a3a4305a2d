"""Measures how long each step takes, for whoever sizes the next ones.

Owns the moments between launches and results; does not know what they are used for. Invariant: a step's time runs from its
launch, or from the end of the step before it if that came later, to the moment when its result was in the worker's hands; so the
times of steps that follow each other without a pause add up to the time that passed.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import msgspec

from sapwood.core.plan import Engine, EngineLimits, Pending, StepPlan, StepResult, UInt32Array


class TimedPending:
    """A launched step whose result will say how long it took."""

    __slots__ = ("_stopwatch", "_pending", "_launched_s")

    def __init__(self, stopwatch: Stopwatch, pending: Pending, launched_s: float) -> None:
        self._stopwatch = stopwatch
        self._pending = pending
        self._launched_s = launched_s

    def done(self) -> bool:
        """Whether `wait` would return at once."""
        return self._pending.done()

    def wait(self) -> StepResult:
        """The engine's result, with `duration_s`."""
        result = self._pending.wait()
        return msgspec.structs.replace(result, duration_s=self._stopwatch.lap(self._launched_s))

    def release(self, masks: UInt32Array) -> None:
        """The engine's."""
        self._pending.release(masks)


class Stopwatch:
    """An engine that measures another one."""

    def __init__(self, engine: Engine, clock: Callable[[], float] = time.perf_counter) -> None:
        self._engine = engine
        self._clock = clock
        self._last_end_s = 0.0

    @property
    def limits(self) -> EngineLimits:
        """The engine's."""
        return self._engine.limits

    def launch(self, plan: StepPlan) -> TimedPending:
        """Pass the plan on."""
        launched_s = self._clock()
        return TimedPending(self, self._engine.launch(plan), launched_s)

    def lap(self, launched_s: float) -> float:
        """A step that was launched then has ended now; its seconds."""
        began_s, self._last_end_s = max(launched_s, self._last_end_s), self._clock()
        return self._last_end_s - began_s

    def close(self) -> None:
        """Close the engine."""
        self._engine.close()
