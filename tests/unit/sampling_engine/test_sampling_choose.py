"""Choosing from logits against a slow oracle in numpy, one row at a time; batch independence; the shape of the distribution."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from sapwood.kernels.reference import sampling as ops


@dataclass(frozen=True)
class Row:
    """One row's settings in plain Python."""

    temperature: float
    top_k: int
    top_p: float
    min_p: float
    uniform: float


def as_settings(rows: list[Row]) -> ops.RowSettings:
    return ops.RowSettings(
        np.array([r.temperature for r in rows], np.float32),
        np.array([r.top_k for r in rows], np.int64),
        np.array([r.top_p for r in rows], np.float64),
        np.array([r.min_p for r in rows], np.float32),
        np.array([r.uniform for r in rows], np.float64),
    )


def support(logits: np.ndarray, row: Row) -> tuple[list[int], list[float]]:
    """The ids that may be chosen, in walking order, and their probabilities before the last normalisation."""
    scaled = (logits.astype(np.float64) - logits.max()) / row.temperature
    probs = np.exp(scaled) / np.exp(scaled).sum()
    if row.top_k >= len(logits) and row.top_p >= 1.0:
        ids = [i for i in range(len(logits)) if probs[i] >= row.min_p * probs.max()]
        return ids, [probs[i] for i in ids]
    ranked = sorted(range(len(logits)), key=lambda i: (-logits[i], i))[: row.top_k]
    mass = sum(probs[i] for i in ranked) if row.top_k < len(logits) else 1.0
    kept, before = [], 0.0
    for i in ranked:
        if row.top_p < 1.0 and before >= row.top_p * mass:
            break
        kept.append(i)
        before += probs[i]
    kept = [i for i in kept if probs[i] >= row.min_p * probs[ranked[0]]]
    return kept, [probs[i] for i in kept]


def oracle(logits: np.ndarray, row: Row) -> tuple[int, float]:
    """The id, and how near the decision was (a distance below 1e-6 may fall either way in float32)."""
    if row.temperature == 0.0:
        return int(np.argmax(logits)), 1.0
    ids, probs = support(logits, row)
    cumulative = np.cumsum(probs)
    target = row.uniform * cumulative[-1]
    place = int((cumulative <= target).sum())
    return ids[min(place, len(ids) - 1)], float(np.abs(cumulative[:-1] - target).min(initial=1.0))


rows_of_settings = st.builds(
    Row,
    temperature=st.sampled_from([0.0, 0.25, 0.7, 1.0, 1.5]),
    top_k=st.sampled_from([1, 2, 5, 17, 10**6]),
    top_p=st.sampled_from([0.123, 0.51, 0.913, 1.0]),
    min_p=st.sampled_from([0.0, 0.0137, 0.313]),
    uniform=st.floats(0.0, 1.0, exclude_max=True),
)


def random_logits(count: int, vocab_size: int, seed: int, coarse: bool) -> torch.Tensor:
    """Normal logits; coarse ones are rounded to halves, so that ties are everywhere."""
    logits = torch.randn(count, vocab_size, generator=torch.Generator().manual_seed(seed)) * 3
    return (logits * 2).round() / 2 if coarse else logits


@settings(max_examples=150, deadline=None)
@given(st.lists(rows_of_settings, min_size=1, max_size=6), st.sampled_from([3, 40, 700]), st.integers(0, 10**6), st.booleans())
def test_agrees_with_the_oracle(rows: list[Row], vocab_size: int, seed: int, coarse: bool) -> None:
    logits = random_logits(len(rows), vocab_size, seed, coarse)
    chosen = ops.choose(logits, as_settings(rows)).tolist()
    for row, row_logits, got in zip(rows, logits.numpy(), chosen, strict=True):
        expected, distance = oracle(row_logits, row)
        near_border = distance < 1e-6 or _near_filter_border(row_logits, row)
        assert got == expected or near_border


def _near_filter_border(logits: np.ndarray, row: Row) -> bool:
    """Whether a hair's change of top_p or min_p changes the support: float32 may see it either way."""
    nudged = [Row(row.temperature, row.top_k, min(1.0, row.top_p * f), row.min_p * f, row.uniform) for f in (0.99999, 1.00001)]
    return len({len(support(logits, r)[0]) for r in [row, *nudged] if r.temperature}) > 1


@settings(max_examples=60, deadline=None)
@given(st.lists(rows_of_settings, min_size=2, max_size=8), st.sampled_from([5, 333, 3001]), st.integers(0, 10**6), st.booleans())
def test_a_row_alone_is_the_row_in_the_batch(rows: list[Row], vocab_size: int, seed: int, coarse: bool) -> None:
    logits = random_logits(len(rows), vocab_size, seed, coarse)
    together = ops.choose(logits, as_settings(rows))
    alone = [int(ops.choose(logits[i : i + 1], as_settings([row]))) for i, row in enumerate(rows)]
    assert together.tolist() == alone
    order = np.random.default_rng(seed).permutation(len(rows))
    permuted = ops.choose(logits[torch.from_numpy(order)], as_settings([rows[i] for i in order]))
    assert permuted.tolist() == [alone[i] for i in order]


def test_probabilities_have_the_same_bits_in_any_batch() -> None:
    """The law rests on it: no elementwise kernel whose rounding depends on where in memory a row lies."""
    logits = random_logits(9, 1003, 5, coarse=False)
    rows = [Row(0.1 + 0.2 * i, 10**6, 1.0, 0.0, 0.5) for i in range(9)]
    together = ops._probabilities(logits, as_settings(rows))
    for i, row in enumerate(rows):
        assert torch.equal(together[i], ops._probabilities(logits[i : i + 1].clone(), as_settings([row]))[0])
    assert torch.equal(ops.log_probabilities(logits)[4], ops.log_probabilities(logits[4:5].clone())[0])


@pytest.mark.parametrize(
    ("row", "name"),
    [
        (Row(1.0, 10**6, 1.0, 0.0, 0.0), "plain"),
        (Row(0.7, 10**6, 1.0, 0.1, 0.0), "min-p"),
        (Row(1.0, 4, 1.0, 0.0, 0.0), "top-k"),
        (Row(1.3, 6, 0.8, 0.05, 0.0), "all filters"),
    ],
)
def test_frequencies_follow_the_distribution(row: Row, name: str) -> None:
    count, logits = 20_000, random_logits(1, 8, 1, coarse=False)
    draws = np.arange(count)
    uniforms = ops.uniforms(np.full(count, 7, np.uint64), np.zeros(count, np.int64), draws)
    rows = as_settings([row] * count)
    rows = ops.RowSettings(rows.temperature, rows.top_k, rows.top_p, rows.min_p, uniforms)
    histogram = np.bincount(ops.choose(logits.expand(count, 8).contiguous(), rows).numpy(), minlength=8)
    ids, probs = support(logits[0].numpy(), row)
    expected = np.zeros(8)
    expected[ids] = np.array(probs) / sum(probs) * count
    assert histogram[expected == 0].sum() == 0
    held = expected > 0
    chi_square = ((histogram - expected)[held] ** 2 / expected[held]).sum()
    assert chi_square < 24.3, name  # 99.9 % quantile for 7 degrees of freedom


@pytest.mark.parametrize("uniform", [0.0, 0.3, 0.9999, 1.0 - 2.0**-53])
def test_a_wide_nucleus_is_walked_to_its_end(uniform: float) -> None:
    """Flat logits: the nucleus is far larger than the first candidates, and every value is a tie."""
    size = 5000
    row = Row(1.0, 10**9, 0.9, 0.0, uniform)
    expected, distance = oracle(np.zeros(size, np.float32), row)
    got = int(ops.choose(torch.zeros(1, size), as_settings([row])))
    assert abs(got - expected) <= 1 and distance < 1.0


@given(st.integers(1, 60), st.integers(0, 10**6))
@settings(deadline=None)
def test_best_equals_a_stable_sort_whatever_the_ties(k: int, seed: int) -> None:
    values = torch.randint(0, 9, (3, 400), generator=torch.Generator().manual_seed(seed)).float()
    found, ids = ops.best(values, k)
    expected, expected_ids = torch.sort(values, dim=-1, descending=True, stable=True)
    assert torch.equal(found, expected[:, :k]) and torch.equal(ids, expected_ids[:, :k])


def test_greedy_takes_the_lowest_id_of_equals() -> None:
    logits = torch.zeros(2, 1000)
    logits[0, [7, 500, 999]] = 2.0
    assert ops.choose(logits, as_settings([Row(0.0, 10**6, 1.0, 0.0, 0.5)] * 2)).tolist() == [7, 0]


@pytest.mark.parametrize("value", [-torch.inf, torch.nan, torch.inf])
def test_hopeless_rows_still_give_legal_ids(value: float) -> None:
    logits = torch.full((4, 300), value)
    rows = [
        Row(0.0, 10**6, 1.0, 0.0, 0.9),
        Row(1.0, 10**6, 1.0, 0.2, 0.9),
        Row(1.0, 5, 1.0, 0.0, 0.9),
        Row(1.0, 999, 0.5, 0.0, 0.9),
    ]
    assert all(0 <= i < 300 for i in ops.choose(logits, as_settings(rows)).tolist())


def test_forbidden_ids_are_never_drawn() -> None:
    logits = torch.full((6, 100), -torch.inf)
    logits[:, [3, 50]] = torch.tensor([0.0, 1.0])
    uniforms = (0.0, 0.5, 1.0 - 2.0**-53)
    rows = [Row(1.0, 10**6, 1.0, 0.0, u) for u in uniforms] + [Row(1.0, 40, 0.99, 0.0, u) for u in uniforms]
    assert set(ops.choose(logits, as_settings(rows)).tolist()) == {3, 50}


def test_tiny_temperature_and_huge_logits_stay_finite() -> None:
    logits = torch.tensor([[1e38, -1e38, 3.0]])
    assert int(ops.choose(logits, as_settings([Row(1e-5, 10**6, 1.0, 0.0, 0.7)]))) == 0
