"""How long a step takes: base + per token + per attended position, learnt from measured steps.

Owns two windows of measurements (steps with prompts, steps of decodes alone, so that neither washes the other out) and the three
coefficients; does not plan. Invariant: coefficients are never negative, and equal measurements give equal ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import sqrt

import numpy as np
from numpy.typing import NDArray

from sapwood.core.plan import RowRun

WINDOW = 64
MARGIN_QUANTILE = 0.95
MAX_MARGIN = 2.0
UNBOUNDED = 2**40


def attended(first: int, count: int) -> int:
    """How many (position, earlier or own position) pairs attention visits for positions [first, first + count)."""
    return count * first + count * (count + 1) // 2


class StepCost:
    """A linear model of step times, refitted to the latest measurements."""

    def __init__(self) -> None:
        self._mixed = _Window()
        self._decodes = _Window()
        self._base_s = self._token_s = self._attended_s = 0.0
        self._is_stale = False
        self.margin = 1.0
        self.largest_prompt = 0

    def learn(self, rows: Sequence[RowRun], duration_s: float) -> None:
        """Keep one measured step."""
        num_tokens = num_attended = 0
        for row in rows:
            num_tokens += row.count
            num_attended += attended(row.first, row.count)
        num_decodes = sum(row.count == 1 and row.samples for row in rows)
        window = self._decodes if num_decodes == len(rows) else self._mixed
        window.add(num_tokens, num_attended, duration_s, num_tokens - num_decodes)
        self._is_stale = True

    def fit(self) -> None:
        """Bring coefficients, margin and `largest_prompt` up to date."""
        if not self._is_stale:
            return
        self._is_stale = False
        samples = np.concatenate([self._mixed.samples(), self._decodes.samples()])
        self._base_s, self._token_s, self._attended_s = fit_step_times(samples)
        judged = self._mixed.samples()
        if len(judged):
            predicted = self._base_s + judged[:, :2] @ np.array([self._token_s, self._attended_s])
            ratios = np.sort(judged[:, 2] / np.maximum(predicted, 1e-9))
            self.margin = min(max(float(ratios[int(MARGIN_QUANTILE * (len(ratios) - 1))]), 1.0), MAX_MARGIN)
            self.largest_prompt = int(judged[:, 3].max())

    def of(self, num_tokens: int, num_attended: int) -> float:
        """Seconds that these positions add to a step."""
        return self._token_s * num_tokens + self._attended_s * num_attended

    def of_step(self, num_tokens: int, num_attended: int) -> float:
        """Seconds of a whole step."""
        return self._base_s + self.of(num_tokens, num_attended)

    def affordable(self, seconds: float, first: int) -> int:
        """The largest number of positions from `first` on that add no more than `seconds`."""
        if seconds <= 0.0:
            return 0
        linear, square = self._token_s + self._attended_s * (first + 0.5), self._attended_s / 2
        if square * seconds <= 1e-6 * linear * linear:
            return int(seconds / linear) if linear * UNBOUNDED > seconds else UNBOUNDED
        return int((sqrt(linear * linear + 4 * square * seconds) - linear) / (2 * square))


class _Window:
    """The latest measurements: tokens, attended positions, seconds, prompt tokens. float64 [n, 4]."""

    def __init__(self) -> None:
        self._ring = np.zeros((WINDOW, 4))
        self._num_added = 0

    def add(self, *sample: float) -> None:
        self._ring[self._num_added % WINDOW] = sample
        self._num_added += 1

    def samples(self) -> NDArray[np.float64]:
        return self._ring[: min(self._num_added, WINDOW)]


def fit_step_times(samples: NDArray[np.float64]) -> tuple[float, float, float]:
    """Coefficients of (1, tokens, attended) for rows of (tokens, attended, seconds, ...); zeros without any."""
    if not len(samples):
        return 0.0, 0.0, 0.0
    features = np.column_stack([np.ones(len(samples)), samples[:, 0], samples[:, 1]])
    base_s, token_s, attended_s = fit_nonnegative(features, samples[:, 2]).tolist()
    return base_s, token_s, attended_s


def fit_nonnegative(
    features: NDArray[np.float64], seconds: NDArray[np.float64], scale_s: NDArray[np.float64] | None = None
) -> NDArray[np.float64]:
    """The coefficients >= 0 of `features` [n, k] that come closest to `seconds` [n > 0], errors counted in parts of `scale_s` [n]
    (`seconds` by default): least squares by an active set, which grows by the feature that helps most and is cut back where a
    coefficient would become negative."""
    scale_s = seconds if scale_s is None else scale_s
    relative = features / scale_s[:, None]
    scales = np.maximum(relative.max(axis=0), 1e-300)
    relative /= scales
    gram = relative.T @ relative + 1e-9 * len(relative) * np.eye(features.shape[1])
    wanted, found = relative.T @ (seconds / scale_s), np.zeros(features.shape[1])
    active = np.zeros(features.shape[1], dtype=bool)
    for _ in range(3 * features.shape[1]):
        gain = np.where(active, 0.0, wanted - gram @ found)
        if gain.max() <= 1e-9 * len(relative):
            break
        active[gain.argmax()] = True
        while True:
            solution = np.zeros_like(found)
            solution[active] = np.linalg.solve(gram[np.ix_(active, active)], wanted[active])
            falling = active & (solution <= 0.0)
            if not falling.any():
                break
            step = np.min(found[falling] / np.maximum(found[falling] - solution[falling], 1e-300))
            found += step * (solution - found)
            active &= found > 1e-15
        found = solution
    coefficients: NDArray[np.float64] = found / scales
    return coefficients
