"""Combinations of options in which every two values meet: few rows instead of a product.

Pure. Invariant: equal factors give equal rows, and every pair of values of two factors that is allowed is in one of them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import combinations, product
from typing import Any

Row = dict[str, Any]
Pair = tuple[tuple[str, int], tuple[str, int]]


def wanted_pairs(factors: Mapping[str, Sequence[Any]]) -> set[Pair]:
    """Every two values of different factors, by name and index."""
    return {
        ((one, i), (other, j))
        for one, other in combinations(factors, 2)
        for i, j in product(range(len(factors[one])), range(len(factors[other])))
    }


def pairs_of(indices: Mapping[str, int]) -> set[Pair]:
    """The pairs that a row (indices of values, in the order of the factors) has."""
    return set(combinations(indices.items(), 2))


def pairwise_rows(factors: Mapping[str, Sequence[Any]]) -> list[Row]:
    """Greedy: each row begins with a pair that is still wanted and takes, factor by factor, the value that meets most of them."""
    wanted, rows = wanted_pairs(factors), []
    while wanted:
        chosen: dict[str, int] = dict(min(wanted))
        for name in factors:
            if name not in chosen:
                gain: Callable[[int], tuple[int, int]] = lambda i, name=name: (  # type: ignore[misc]  # noqa: E731
                    sum(_pair(factors, (name, i), item) in wanted for item in chosen.items()),  # noqa: B023
                    (i + len(rows)) % len(factors[name]),
                )
                chosen[name] = max(range(len(factors[name])), key=gain)
        chosen = {name: chosen[name] for name in factors}
        wanted -= pairs_of(chosen)
        rows.append({name: factors[name][index] for name, index in chosen.items()})
    return rows


def _pair(factors: Mapping[str, Sequence[Any]], one: tuple[str, int], other: tuple[str, int]) -> Pair:
    names = list(factors)
    return (one, other) if names.index(one[0]) < names.index(other[0]) else (other, one)
