"""A number above 6 and below 7 could be 6: llguidance 1.9 takes a whole bound that is excluded, where both bounds have one whole
part. And one above 1.5 could be 1.5000000000000001, which is 1.5 to every reader. Found by benchmarks/constraints.py."""

from __future__ import annotations

import json

import pytest

from sapwood.core.constraint import Constraint
from sapwood.grammar.api import GrammarOptions, Vocabulary
from sapwood.grammar.guidance import GuidanceBackend
from sapwood.grammar.schema import with_closed_bounds

BYTES = Vocabulary([*(bytes([byte]) for byte in range(256)), b"<end>"], [256], [256], 257, lambda text: list(text.encode()))
CASES = [
    ({"type": "number", "exclusiveMinimum": 6.0, "exclusiveMaximum": 6.01}, ["6.001", "6.0099"], ["6", "6.0", "6.01"]),
    ({"type": "number", "exclusiveMinimum": 0, "maximum": 0.5}, ["0.1", "0.5"], ["0", "0.0", "0.6"]),
    ({"type": "number", "exclusiveMaximum": -6, "minimum": -6.5}, ["-6.1", "-6.5"], ["-6", "-6.0", "-6.6"]),
    ({"type": "number", "exclusiveMaximum": 0, "minimum": -0.5}, ["-0.1"], ["0", "-0", "-0.0", "0.0"]),
    ({"type": "number", "exclusiveMinimum": 1.5, "exclusiveMaximum": 1.51}, ["1.501"], ["1.5", "1.5000000000000001", "1.51"]),
    ({"type": "number", "exclusiveMaximum": 109.09}, ["109.08", "-3"], ["109.09"]),
    ({"type": "number", "minimum": 0, "exclusiveMaximum": 1}, ["0", "0.9", "0.99"], ["1", "1.0"]),
    ({"type": "number", "exclusiveMinimum": -1, "maximum": 0}, ["0", "-0.9", "-0.99"], ["-1", "-1.0"]),
    ({"exclusiveMinimum": 6, "maximum": 6.5, "minimum": 2, "type": ["number", "null"]}, ["6.2", "null"], ["6", "3"]),
    ({"type": "integer", "exclusiveMinimum": 0, "exclusiveMaximum": 3}, ["1", "2"], ["0", "3"]),
]


@pytest.mark.parametrize(("schema", "right", "wrong"), CASES, ids=lambda value: json.dumps(value)[:60])
def test_excluded_bounds_are_excluded(schema: object, right: list[str], wrong: list[str]) -> None:
    grammar = GuidanceBackend(BYTES, GrammarOptions()).compile(Constraint("json_schema", json.dumps(schema)))

    def is_taken(text: str) -> bool:
        matcher = grammar.start()
        return all(matcher.accept(byte) for byte in text.encode()) and matcher.inner.is_accepting()  # type: ignore[attr-defined]

    assert [text for text in right if not is_taken(text)] == []
    assert [text for text in wrong if is_taken(text)] == []


def test_only_bounds_are_spelled_otherwise() -> None:
    kept = {"enum": [{"exclusiveMinimum": 6}], "properties": {"exclusiveMinimum": {"type": "string"}}, "exclusiveMaximum": True}
    assert with_closed_bounds(kept) == kept
    assert with_closed_bounds({"properties": {"enum": {"exclusiveMinimum": 6}}})["properties"]["enum"]["minimum"] > 6
