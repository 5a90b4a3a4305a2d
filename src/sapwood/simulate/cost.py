"""What a step costs in a simulation: seconds as a function of its tokens and of the context they attend to.

Owns the cost file's format and the fit to measured steps; does not know requests. Invariant: a cost is positive and never falls
when a step grows.
"""

from __future__ import annotations

from bisect import bisect_left
from pathlib import Path
from statistics import median
from typing import Protocol

import msgspec
import numpy as np
from numpy.typing import NDArray

from sapwood.core.plan import StepPlan
from sapwood.errors import ConfigError
from sapwood.scheduler.step_cost import attended, fit_nonnegative
from sapwood.scheduler.step_log import measured_steps

MIN_STEPS = 20
NUM_REFITS = 3
SHORTEST_S = 1e-6
NUM_RATIOS, SMALLEST_RATIO = 100, 1e-3


class StepTimes(Protocol):
    """How long steps take, and what a turn of the loop takes until its step is launched."""

    @property
    def spread(self) -> tuple[float, ...]:
        """By what steps vary: equally likely factors of `seconds`, 1 on average; none: they do not."""
        ...

    @property
    def turn_s(self) -> float:
        """The time from a turn's beginning until its step is launched; while a step runs, nobody waits for it."""
        ...

    def seconds(self, num_tokens: int, num_attended: int, num_read: int = 0) -> float:
        """The time of a step with so many tokens, which attend to so many positions in all; `num_read`: of its rows' contexts."""
        ...


class CostModel(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Seconds of one step: what its tokens cost, plus `attended_s` for each position that each of them attends to, plus `read_s`
    for each position of each row's context (keys and values are read once for all tokens of a row).

    Tokens cost `base_s + token_s * tokens`, or, where `points` are given, what lies between the two nearest of these
    (tokens, seconds) pairs; beyond the last one the last slope goes on. `turn_s` is what the host needs to decide on a step and
    to launch it: hidden while another one runs, and what a client's tokens wait for before they are on their way. `spread` is how
    much steps vary: equally likely ratios of what a step takes to what is said here, 1 on average (none: steps do not vary).
    """

    base_s: float = 0.0
    token_s: float = 0.0
    attended_s: float = 0.0
    read_s: float = 0.0
    turn_s: float = 0.0
    points: tuple[tuple[int, float], ...] = ()
    spread: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        tokens, seconds = [point[0] for point in self.points], [point[1] for point in self.points]
        if min(self.base_s, self.token_s, self.attended_s, self.read_s, self.turn_s, *seconds, 0.0) < 0.0:
            raise ConfigError("a cost model's seconds must not be negative")
        if self.spread and min(self.spread) <= 0.0:
            raise ConfigError("a cost model's spread must be positive ratios")
        if len(tokens) == 1 or tokens != sorted(set(tokens)) or seconds != sorted(seconds):
            raise ConfigError("a cost model's points must be at least two, with rising tokens and seconds that do not fall")
        if not self.points and self.base_s + self.token_s <= 0.0:
            raise ConfigError("a cost model needs base_s and token_s, or points")

    def seconds(self, num_tokens: int, num_attended: int, num_read: int = 0) -> float:
        """The time of a step."""
        return self._of_tokens(num_tokens) + self.attended_s * num_attended + self.read_s * num_read

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


def calibrate(*step_logs: str) -> CostModel:
    """The model that fits the measured steps of logs (`--step-log`) best, in relative error: a line that bends where steps have
    about 1, 2, 4, 8... tokens, and what attending and reading add; how much steps vary around that; and the median turn that was
    not hidden by a step. Raises ConfigError when they are too few.

    Errors are counted in parts of what the model says, not of what was measured: else steps that something delayed would count
    less than others, and the model would be too fast on average.
    """
    steps = [step for log in step_logs for step in measured_steps(log) if step.plan.rows]
    if len(steps) < MIN_STEPS:
        raise ConfigError(f"{', '.join(step_logs)} has {len(steps)} measured steps; calibrating takes at least {MIN_STEPS}")
    table = np.array([(*step_size(step.plan), step.duration_s) for step in steps], dtype=np.float64)
    knots = _knots({int(tokens) for tokens in table[:, 0]})
    risen = np.clip((table[:, :1] - knots[:-1]) / np.diff(knots), 0.0, 1.0)
    features = np.column_stack([np.ones(len(table)), risen, table[:, 1:3]])
    found = fit_nonnegative(features, table[:, 3])
    for _ in range(NUM_REFITS):
        found = fit_nonnegative(features, table[:, 3], np.maximum(features @ found, SHORTEST_S))
    *rises_s, attended_s, read_s = found.tolist()
    heights_s = np.cumsum(rises_s).tolist()
    turn_s = median([step.turn_s for step in steps if step.turn_s is not None] or [0.0])
    points = tuple(zip(map(int, knots), heights_s, strict=True))
    spread = _spread(table[:, 3] / np.maximum(features @ found, SHORTEST_S))
    return CostModel(attended_s=attended_s, read_s=read_s, turn_s=turn_s, points=points, spread=spread)


def _spread(ratios: NDArray[np.float64]) -> tuple[float, ...]:
    """Means of equal parts of the sorted ratios, scaled to a mean of 1."""
    parts = np.array_split(np.sort(ratios), min(len(ratios), NUM_RATIOS))
    means = np.maximum([part.mean() for part in parts], SMALLEST_RATIO)
    return tuple((means / means.mean()).tolist())


def _knots(counts: set[int]) -> NDArray[np.float64]:
    """Where the line may bend: the fewest tokens of any step, and of the rest the most within each power of two."""
    fewest = min(counts)
    largest = {count.bit_length(): count for count in sorted(counts) if count > fewest}
    return np.array([fewest, *(largest.values() or [fewest + 1])], dtype=np.float64)


def step_size(plan: StepPlan) -> tuple[int, int, int]:
    """Tokens of a step, positions that they attend to in all, and positions of its rows' contexts."""
    rows = plan.rows
    return plan.num_tokens, sum(attended(row.first, row.count) for row in rows), sum(row.first + row.count for row in rows)
