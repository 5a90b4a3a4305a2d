"""A constraint that insists on a long text (`a{1000000}`) held the worker's loop until the watchdog killed it, and again when the
request was replayed: the compiler follows what must come byte by byte. Such constraints are refused before they are queued.
"""

from __future__ import annotations

import json

import pytest

from sapwood.core.constraint import Constraint, ConstraintKind
from sapwood.errors import InvalidRequest
from sapwood.grammar.api import GrammarOptions
from sapwood.grammar.check import check_constraint
from sapwood.grammar.runs import MAX_RUN, shortest_length

LONG = "a" * (MAX_RUN + 1)
TOO_LONG: list[tuple[ConstraintKind, str]] = [
    ("regex", "a{1000000}"),
    ("regex", "(x|(ab){500000})y"),
    ("regex", "((a{100}){100}){100,}"),
    ("regex", "[[:alpha:]]{99999}"),
    ("regex", LONG),
    ("ebnf", "start: /a{1000000}/"),
    ("ebnf", f'root ::= "{LONG}"'),
    ("choice", json.dumps(["a", LONG])),
    ("json_schema", '{"type": "string", "pattern": "^a*$", "minLength": 10000000}'),
    ("json_schema", '{"properties": {"p": {"anyOf": [{"type": "string", "pattern": "a{100000}"}]}}}'),
    ("json_schema", '{"patternProperties": {"a{100000}": {}}}'),
    ("json_schema", json.dumps({"const": LONG})),
    ("structural_tag", '{"format": {"type": "regex", "pattern": "a{1000000}"}}'),
]
LENGTHS = [
    ("", 0), ("abc", 3), (r"\{\d\]", 3), ("a{3}", 3), ("(ab){3}", 6), ("a{2,9}b*c?d+", 3), ("(a{10}){10}", 100), ("[{9}]{4}", 4),
    ("[]{9}]", 1), ("(a|b{5})", 6), ("x{0}", 0), ("a{,5}", 5), ("^a$", 1), ("(?:ab)*", 0),
    ("(?:ab){2}(?P<n>c)(?i)", 5), (")", 1), ("{5}", 0),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "text"), TOO_LONG, ids=lambda value: value[:40])
def test_a_text_that_is_too_long_to_be_insisted_on_is_refused(kind: ConstraintKind, text: str) -> None:
    with pytest.raises(InvalidRequest, match=str(MAX_RUN)) as caught:
        check_constraint(Constraint(kind, text), GrammarOptions())
    assert caught.value.param == kind and kind in caught.value.message


@pytest.mark.parametrize("pattern", [f"a{{{MAX_RUN}}}", "a{0,1000000}", "[a-z ]{1,100000}", r"(\d{3,4}-){2}\d{8}", "a*b+c?"])
def test_what_may_be_long_but_need_not_be_is_taken(pattern: str) -> None:
    check_constraint(Constraint("regex", pattern), GrammarOptions())
    check_constraint(Constraint("json_schema", json.dumps({"type": "string", "pattern": pattern})), GrammarOptions())


@pytest.mark.parametrize(("pattern", "length"), LENGTHS)
def test_the_shortest_text_is_counted(pattern: str, length: int) -> None:
    assert shortest_length(pattern) == length
