"""How long a step takes: base + per token + per attended position + per position read, learnt from measured steps.

Owns two windows of measurements (steps with prompts, steps of decodes alone, so that neither washes the other out) and the four
coefficients; does not plan. Invariant: coefficients are never negative, and equal measurements give equal ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import sqrt

import numpy as np
from numpy.typing import NDArray

from sapwood.core.plan import RowRun

WINDOW = 64
TAIL_WINDOW = 256
"""What is rare shows in no fewer steps."""
TYPICAL_QUANTILE, TAIL_QUANTILE = 0.5, 0.995
TAIL_SHARE = 1.5
"""A step of the tail may take so many times what a typical one may."""
MAX_MARGIN = 2.0
UNBOUNDED = 2**40


def attended(first: int, count: int) -> int:
    """How many (position, earlier or own position) pairs attention visits for positions [first, first + count)."""
    return count * first + count * (count + 1) // 2


class StepCost:
    """A linear model of step times, refitted to the latest measurements."""

    def __init__(self) -> None:
        self._mixed = _Window(TAIL_WINDOW)
        self._decodes = _Window(WINDOW)
        self._coefficients = np.zeros(4)
        self._base_s = self._token_s = self._attended_s = self._read_s = 0.0
        self._is_stale = False
        self.margin = 1.0
        self.largest_prompt = 0
        self._num_since_alone = WINDOW

    def learn(self, rows: Sequence[RowRun], duration_s: float) -> None:
        """Keep one measured step."""
        num_tokens = num_attended = num_read = 0
        for row in rows:
            num_tokens += row.count
            num_attended += attended(row.first, row.count)
            num_read += row.first + row.count
        num_decodes = sum(row.count == 1 and row.samples for row in rows)
        is_alone = num_decodes == len(rows)
        window = self._decodes if is_alone else self._mixed
        self._num_since_alone = 0 if is_alone else self._num_since_alone + 1
        window.add(num_tokens, num_attended, num_read, duration_s, num_tokens - num_decodes)
        self._is_stale = True

    def fit(self) -> None:
        """Bring coefficients, margin and `largest_prompt` up to date."""
        if not self._is_stale:
            return
        self._is_stale = False
        samples = np.concatenate([self._mixed.latest(WINDOW), self._decodes.latest(WINDOW)])
        self._coefficients = fit_step_times(samples, self._coefficients)
        self._base_s, self._token_s, self._attended_s, self._read_s = self._coefficients.tolist()
        judged = self._mixed.latest(TAIL_WINDOW)
        if len(judged):
            ratios = judged[:, 3] / np.maximum(predicted_s(judged, self._coefficients), 1e-9)
            typical, tail = quantile(ratios[-WINDOW:], TYPICAL_QUANTILE), quantile(ratios, TAIL_QUANTILE)
            self.margin = min(max(typical, tail / TAIL_SHARE, 1.0), MAX_MARGIN)
            self.largest_prompt = int(judged[-WINDOW:, 4].max())

    @property
    def knows_decodes(self) -> bool:
        """Whether decodes alone were among the latest steps. Where they were not, what they take is a guess: with chunks of one
        size the fit cannot tell them from the prompts."""
        return self._num_since_alone < WINDOW

    def of_row(self, first: int, count: int) -> float:
        """Seconds that these positions add to a step."""
        return self._token_s * count + self._attended_s * attended(first, count) + self._read_s * (first + count)

    def of_step(self, rows: Sequence[RowRun]) -> float:
        """Seconds of a whole step."""
        return self._base_s + sum(self.of_row(row.first, row.count) for row in rows)

    def affordable(self, seconds: float, first: int) -> int:
        """The largest number of positions from `first` on that add no more than `seconds`."""
        seconds -= self._read_s * first
        if seconds <= 0.0:
            return 0
        linear, square = self._token_s + self._read_s + self._attended_s * (first + 0.5), self._attended_s / 2
        if square * seconds <= 1e-6 * linear * linear:
            return int(seconds / linear) if linear * UNBOUNDED > seconds else UNBOUNDED
        return int((sqrt(linear * linear + 4 * square * seconds) - linear) / (2 * square))


class _Window:
    """The latest measurements: tokens, attended positions, positions read, seconds, prompt tokens. float64 [n, 5]."""

    def __init__(self, size: int) -> None:
        self._ring = np.zeros((size, 5))
        self._num_added = 0

    def add(self, *sample: float) -> None:
        self._ring[self._num_added % len(self._ring)] = sample
        self._num_added += 1

    def latest(self, count: int) -> NDArray[np.float64]:
        """Up to `count` samples, the latest one last."""
        last = np.arange(max(self._num_added - count, 0), self._num_added)
        return self._ring[last % len(self._ring)]


def quantile(values: NDArray[np.float64], share: float) -> float:
    """The value below which that share of all lies."""
    return float(np.sort(values)[round(share * (len(values) - 1))])


def predicted_s(samples: NDArray[np.float64], coefficients: NDArray[np.float64]) -> NDArray[np.float64]:
    """What coefficients say of samples. Seconds."""
    found: NDArray[np.float64] = coefficients[0] + samples[:, :3] @ coefficients[1:]
    return found


def fit_step_times(samples: NDArray[np.float64], known: NDArray[np.float64]) -> NDArray[np.float64]:
    """Coefficients of (1, tokens, attended, read) for rows of (tokens, attended, read, seconds, ...); none: the known ones.

    Errors count in parts of what the coefficients `known` so far say, never of what was measured alone: when the host is late for
    one result, its step seems long and the next one next to nothing, and must not outweigh all others by that.
    """
    if not len(samples):
        return known
    scale_s = np.maximum(predicted_s(samples, known), 0.5 * np.median(samples[:, 3]))
    return fit_nonnegative(np.column_stack([np.ones(len(samples)), samples[:, :3]]), samples[:, 3], scale_s)


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
