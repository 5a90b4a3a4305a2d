"""Repeats, medians and percentiles.

Owns the arithmetic of a measurement; knows nothing that is measured. Invariant: what is compared runs alternately, so that a
change of the machine's mood hits all of it, and no repeat is dropped.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from statistics import fmean, median

import msgspec
import numpy as np

Samples = dict[str, list[float]]


class Spread(msgspec.Struct, frozen=True):
    """Several measurements of the same thing."""

    median: float
    least: float
    most: float
    count: int


class Percentiles(msgspec.Struct, frozen=True):
    """Many observations, such as the latencies of all requests. Seconds, unless the name says otherwise."""

    count: int = 0
    mean: float = 0.0
    p50: float = 0.0
    p90: float = 0.0
    p99: float = 0.0


def spread(values: Sequence[float]) -> Spread:
    """Median and extremes of at least one value."""
    return Spread(median(values), min(values), max(values), len(values))


def percentiles(values: Sequence[float]) -> Percentiles:
    """Mean and percentiles (interpolated); zeros when there is nothing."""
    if not values:
        return Percentiles()
    p50, p90, p99 = (float(value) for value in np.percentile(values, (50, 90, 99)))
    return Percentiles(len(values), fmean(values), p50, p90, p99)


def ratios(numerators: Sequence[float], denominators: Sequence[float]) -> Spread:
    """The spread of the ratios of pairs that were measured one after the other."""
    return spread([a / b for a, b in zip(numerators, denominators, strict=True)])


def alternate(cases: Mapping[str, Callable[[], Mapping[str, float]]], repeats: int) -> dict[str, Samples]:
    """Run every case `repeats` times in turn, forwards and backwards by turns; each returns named values, collected by case."""
    found: dict[str, Samples] = {name: {} for name in cases}
    for repeat in range(repeats):
        for name in list(cases)[:: 1 if repeat % 2 == 0 else -1]:
            for what, value in cases[name]().items():
                found[name].setdefault(what, []).append(value)
    return found
