"""A JSON schema with a whole number of more than 64 bits anywhere was a 500: the compiler does not read such numbers. (Found by
`scripts/fuzz_api`.)
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from sapwood.core.constraint import Constraint
from sapwood.errors import InvalidRequest
from sapwood.grammar.api import GrammarOptions
from sapwood.grammar.check import check_constraint

LONGEST = 2**64 - 1


@pytest.mark.parametrize(
    "schema", [{"minimum": 10**30}, {"const": LONGEST + 1}, {"enum": [1, -(2**63) - 1]}, {"properties": {"a": {"x": [10**40]}}}]
)
def test_a_number_that_is_too_long_is_a_mistake_of_the_client(schema: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest, match="64 bits") as caught:
        check_constraint(Constraint("json_schema", json.dumps(schema)), GrammarOptions())
    assert caught.value.param == "json_schema"


@pytest.mark.parametrize("schema", [{"default": 1e30}, {"const": LONGEST}, {"type": "integer", "minimum": -(2**62)}])
def test_numbers_that_fit_are_taken(schema: dict[str, Any]) -> None:
    check_constraint(Constraint("json_schema", json.dumps(schema)), GrammarOptions())
