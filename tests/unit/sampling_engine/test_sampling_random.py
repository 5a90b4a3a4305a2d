"""The counter-based generator: its exact definition in plain integers, and the quality that sampling needs of it."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from sapwood.kernels.reference.sampling import uniforms

MASK = 2**64 - 1


def plain_uniform(seed: int, sample_index: int, position: int, purpose: int) -> float:
    """The documented algorithm in Python's own integers."""

    def mix(z: int) -> int:
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK
        return z ^ (z >> 31)

    h = 0
    for word in (seed, sample_index, position, purpose):
        h = mix((h + 0x9E3779B97F4A7C15 + word) & MASK)
    return (h >> 11) * 2.0**-53


def one(seed: int, sample_index: int, position: int) -> float:
    return float(uniforms(np.array([seed % 2**64], np.uint64), np.array([sample_index]), np.array([position]))[0])


@given(st.integers(-(2**63), 2**63 - 1), st.integers(0, 127), st.integers(0, 2**31))
def test_equals_the_documented_algorithm_to_the_bit(seed: int, sample_index: int, position: int) -> None:
    assert one(seed, sample_index, position) == plain_uniform(seed % 2**64, sample_index, position, 0)


def test_known_values_never_change() -> None:
    """Stored so that another implementation (and a later version of this one) can be held against them."""
    known = {(0, 0, 0): 0.1296456182997474, (1, 0, 5): 0.796436822322113, (-1, 3, 1000): 0.503762444794357}
    assert {key: one(*key) for key in known} == known


def test_rows_do_not_influence_each_other() -> None:
    seeds, indices, positions = np.arange(50, dtype=np.uint64), np.arange(50) % 4, np.arange(50) * 7
    together = uniforms(seeds, indices, positions)
    alone = [uniforms(seeds[i : i + 1], indices[i : i + 1], positions[i : i + 1])[0] for i in range(50)]
    assert together.tolist() == alone


def test_each_word_of_the_key_gives_a_uniform_stream() -> None:
    count = 20_000
    varied, fixed = np.arange(count), np.full(count, 3)
    for arguments in ((varied, fixed, fixed), (fixed, varied, fixed), (fixed, fixed, varied)):
        numbers = uniforms(arguments[0].astype(np.uint64), arguments[1], arguments[2])
        histogram = np.histogram(numbers, bins=20, range=(0.0, 1.0))[0]
        chi_square = ((histogram - count / 20) ** 2 / (count / 20)).sum()
        assert chi_square < 43.8  # 99.9 % quantile for 19 degrees of freedom
        assert abs(np.corrcoef(numbers[:-1], numbers[1:])[0, 1]) < 0.03
        assert len(np.unique(numbers)) == count
