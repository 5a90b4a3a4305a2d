"""The engine behind a worker's loop as something that can be changed: other weights, no memory for a while, its steps recorded.

Owns the engine and how it is made; does not know requests. Invariant: it is changed only by orders, which the scheduler gives
while nothing is in flight; when new weights cannot be had, those before are loaded again.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from sapwood.core.plan import EngineLimits, Pending, StepPlan, TieredEngine
from sapwood.errors import EngineFailed, SapwoodError
from sapwood.messages.types import Answer, Order, Overhaul, Profile
from sapwood.worker.step_trace import StepTrace

logger = logging.getLogger(__name__)


class Steward(Protocol):
    """Whoever carries out orders for the engine."""

    def obey(self, order: Order) -> Answer:
        """Do it, and say whether it was done; raises nothing."""
        ...


class NoSteward:
    """The twin that cannot change anything."""

    def obey(self, order: Order) -> Answer:
        """Refuse."""
        return Answer(order.ask, False, "this engine cannot be changed while it runs")


@dataclass(frozen=True, slots=True)
class Recipe:
    """How the engine is made. `check` raises SapwoodError unless the model at a path can take the place of the first one; `build`
    loads it. `obstacle`: why neither may be used."""

    path: str
    check: Callable[[str], None]
    build: Callable[[str], TieredEngine]
    obstacle: str = ""


class ChangeableEngine:
    """A `TieredEngine` that passes everything on to the present one; also the `Steward` of that one."""

    def __init__(self, engine: TieredEngine, recipe: Recipe, trace: StepTrace) -> None:
        self._engine: TieredEngine | None = engine
        self._limits = engine.limits
        self._recipe = recipe
        self._path = recipe.path
        self._trace = trace

    @property
    def limits(self) -> EngineLimits:
        """Those of the first engine: later ones are built within the same."""
        return self._limits

    @property
    def host_pages(self) -> NDArray[np.uint8]:
        """The present engine's."""
        return self.inner.host_pages

    def launch(self, plan: StepPlan) -> Pending:
        """Pass the plan on, and note it while steps are recorded."""
        pending = self.inner.launch(plan)
        return self._trace.watch(plan, pending) if self._trace.is_on else pending

    def close(self) -> None:
        """Close the present engine, if there is one."""
        if self._engine is not None:
            self._engine.close()
            self._engine = None

    def obey(self, order: Order) -> Answer:
        """See `Steward`."""
        try:
            message = self._change(order) if isinstance(order, Overhaul) else self._record(order)
        except SapwoodError as error:
            logger.warning("%s: %s", type(order).__name__, error.message)
            return Answer(order.ask, False, error.message)
        return Answer(order.ask, True, message)

    @property
    def inner(self) -> TieredEngine:
        """The present engine; raises EngineFailed while its memory is released."""
        if self._engine is None:
            raise EngineFailed("the engine's memory is released; resume it before anything runs")
        return self._engine

    def _change(self, order: Overhaul) -> str:
        if self._recipe.obstacle:
            raise EngineFailed(self._recipe.obstacle)
        began_s = time.perf_counter()
        match order.action:
            case "load":
                self._recipe.check(order.path)
                self.close()
                self._load(order.path)
            case "release":
                self.close()
            case "restore":
                self._engine = self._recipe.build(self._path)
        return f"{order.action}: {Path(self._path).name}, in {time.perf_counter() - began_s:.1f} s"

    def _load(self, path: str) -> None:
        """The engine with the weights at `path`, or, when that fails, with those before."""
        try:
            self._engine = self._recipe.build(path)
        except Exception as error:
            logger.error("the weights at %s cannot be used; loading those before again", path, exc_info=error)
            self._engine = self._recipe.build(self._path)
            reason = error.message if isinstance(error, SapwoodError) else "see the server's log"
            raise EngineFailed(f"the new weights cannot be loaded ({reason}); those before are in place again") from error
        self._path = path

    def _record(self, order: Profile) -> str:
        if order.is_on:
            self._trace.start(order.num_steps)
            return f"recording steps for {self._trace.folder}"
        return str(self._trace.stop())
