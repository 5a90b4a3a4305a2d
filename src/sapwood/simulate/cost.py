"""What a step costs in a simulation: seconds as a function of its tokens and of the context they attend to.

Owns the cost file's format and the fit to measured steps; does not know requests. Invariant: a cost is positive and never falls
when a step grows.
"""

from __future__ import annotations

from bisect import bisect_left
from pathlib import Path
from typing import Protocol

import msgspec
import numpy as np

from sapwood.core.plan import StepPlan
from sapwood.errors import ConfigError
from sapwood.scheduler.step_cost import attended, fit_step_times
from sapwood.scheduler.step_log import measured_steps

MIN_STEPS = 20


class StepTimes(Protocol):
    """How long steps take."""

    def seconds(self, num_tokens: int, num_attended: int) -> float:
        """The time of a step with so many tokens, which attend to so many positions in all."""
        ...


class CostModel(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Seconds of one step: what its tokens cost, plus `attended_s` for each position that each of them attends to.

    Tokens cost `base_s + token_s * tokens`, or, where `points` are given, what lies between the two nearest of these
    (tokens, seconds) pairs; beyond the last one the last slope goes on.
    """

    base_s: float = 0.0
    token_s: float = 0.0
    attended_s: float = 0.0
    points: tuple[tuple[int, float], ...] = ()

    def __post_init__(self) -> None:
        tokens, seconds = [point[0] for point in self.points], [point[1] for point in self.points]
        if min(self.base_s, self.token_s, self.attended_s, *seconds, 0.0) < 0.0:
            raise ConfigError("a cost model's seconds must not be negative")
        if len(tokens) == 1 or tokens != sorted(set(tokens)) or seconds != sorted(seconds):
            raise ConfigError("a cost model's points must be at least two, with rising tokens and seconds that do not fall")
        if not self.points and self.base_s + self.token_s <= 0.0:
            raise ConfigError("a cost model needs base_s and token_s, or points")

    def seconds(self, num_tokens: int, num_attended: int) -> float:
        """The time of a step."""
        return self._of_tokens(num_tokens) + self.attended_s * num_attended

    def _of_tokens(self, num_tokens: int) -> float:
        if not self.points:
            return self.base_s + self.token_s * num_tokens
        index = min(max(bisect_left(self.points, (num_tokens, 0.0)), 1), len(self.points) - 1)
        (low, low_s), (high, high_s) = self.points[index - 1], self.points[index]
        return max(low_s + (high_s - low_s) * (num_tokens - low) / (high - low), self.points[0][1] if num_tokens < low else 0.0)


DEFAULT_COST = CostModel(base_s=0.010, token_s=0.0005, attended_s=2e-7)
"""About a model of 135 M parameters in float32 on two cores; measure your own with `--calibrate`."""


def load_cost(path: str) -> CostModel:
    """The model in a JSON file; raises ConfigError saying what is wrong with it."""
    try:
        return msgspec.json.decode(Path(path).read_bytes(), type=CostModel)
    except OSError as error:
        raise ConfigError(f"cannot read the cost model in {path} ({error.strerror})") from None
    except msgspec.MsgspecError as error:
        raise ConfigError(f"{path} is not a cost model: {error}") from None


def calibrate(step_log: str) -> CostModel:
    """The model that fits the measured steps of a log (`--step-log`) best, in relative error; raises ConfigError when it has too
    few of them."""
    samples = [(*step_size(plan), duration_s) for plan, duration_s in measured_steps(step_log) if plan.rows]
    if len(samples) < MIN_STEPS:
        raise ConfigError(f"{step_log} has {len(samples)} measured steps; calibrating takes at least {MIN_STEPS}")
    base_s, token_s, attended_s = fit_step_times(np.array(samples, dtype=np.float64))
    return CostModel(base_s, token_s, attended_s)


def step_size(plan: StepPlan) -> tuple[int, int]:
    """Tokens of a step, and positions that they attend to in all."""
    return plan.num_tokens, sum(attended(row.first, row.count) for row in plan.rows)
