"""The fuzzers' short form: a few fixed examples of each, and a proof that a find is noticed. `scripts/fuzz` is the long form."""

from __future__ import annotations

import hypothesis.strategies as st
import pytest
from damage import altered, damaged
from fuzzing import Target
from targets import TARGETS

NUM_EXAMPLES, SEED = 25, 1


@pytest.mark.parametrize("name", TARGETS)
def test_a_few_examples(name: str) -> None:
    TARGETS[name].run(NUM_EXAMPLES, SEED)


def test_a_target_that_fails_is_noticed() -> None:
    def check(content: bytes) -> None:
        assert content[:1] != b"w" or len(content) > 5

    with pytest.raises(AssertionError):
        Target(check, (damaged([b"whole file"]),), {}).run(200, SEED)


def test_damage_is_of_every_kind() -> None:
    seen: list[bytes] = []
    Target(lambda content: seen.append(content), (damaged([b"whole file" * 3]),), {}).run(200, SEED)
    assert {len(content) > 30 for content in seen} == {True, False} and len(set(seen)) > 100
    documents: list[object] = []
    Target(lambda document: documents.append(document), (altered([{"a": {"b": [1, 2]}, "c": "d"}]),), {}).run(100, SEED)
    assert any(isinstance(document, dict) and "a" not in document for document in documents)
    assert any(isinstance(document, dict) and document.get("a") not in (None, {"b": [1, 2]}) for document in documents)


def numbers_of(seed: int) -> list[int]:
    numbers: list[int] = []
    Target(lambda number: numbers.append(number), (st.integers(),), {}).run(20, seed)
    return numbers


def test_examples_follow_from_the_seed() -> None:
    assert numbers_of(1) == numbers_of(1) != numbers_of(2)
