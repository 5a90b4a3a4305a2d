"""What each kind of constraint lets a completion be, text by text, on the byte vocabulary."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from sapwood.config.sections import GrammarLimits
from sapwood.core.constraint import Constraint
from sapwood.errors import InvalidRequest
from sapwood.grammar.api import GrammarOptions, Vocabulary
from sapwood.grammar.check import check_constraint
from sapwood.grammar.guidance import GuidanceBackend
from sapwood.tokenizer.byte_vocabulary import byte_tokenizer

TOKENIZER = byte_tokenizer()
OPTIONS = GrammarOptions(False, TOKENIZER.control_ids)
VOCABULARY = Vocabulary(
    [TOKENIZER.token_bytes(token_id) for token_id in range(TOKENIZER.vocab_size)],
    sorted(TOKENIZER.special_ids),
    [258],
    TOKENIZER.vocab_size,
    lambda text: TOKENIZER.encode(text, add_special=False, parse_special=False),
)
BACKEND = GuidanceBackend(VOCABULARY, OPTIONS)
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"], "additionalProperties": False}


def judge(constraint: Constraint, text: str) -> str:
    """ "yes": a whole completion; "more": the beginning of one; "no"."""
    matcher = BACKEND.compile(constraint).start()
    ids = TOKENIZER.encode(text, add_special=False, parse_special=True)
    if not all(matcher.accept(token_id) for token_id in ids):
        return "no"
    return "yes" if matcher.inner.is_accepting() else "more"


def check(kind: Any, value: Any, **verdicts: list[str]) -> None:
    constraint = Constraint(kind, value if isinstance(value, str) else json.dumps(value))
    check_constraint(constraint, OPTIONS)
    for verdict, texts in verdicts.items():
        assert [judge(constraint, text) for text in texts] == [verdict] * len(texts), (verdict, texts)


def tag(begin: str, content: Any, end: Any) -> dict[str, Any]:
    return {"type": "tag", "begin": begin, "content": content, "end": end}


def test_gbnf_as_people_write_it() -> None:
    check("ebnf", 'root ::= "a" b\nb ::= [0-9]+ | "\\u00e9"\n', yes=["a12", "aé"], no=["b"], more=["a"])
    check("ebnf", 'root ::= g # "x\ng ::= "hi"\n  | "hey" # \'\n\n | "h#o"\n', yes=["hi", "hey", "h#o"], no=["x"])
    check("ebnf", "root ::= 'x' '\"' 'it\\'s' 'q\\\"r'", yes=['x"it\'sq"r'])
    check(
        "ebnf", 'root ::= "\\u0041bcd" [\\u00e0-\\u00ff] [\\-\\+^/]', yes=["Abcdé-", "Abcdé+", "Abcdé^", "Abcdé/"], no=["\u041b"]
    )
    check("ebnf", 'root ::= "\\\\u0041"', yes=["\\u0041"], no=["A"])
    check("ebnf", 'root ::= [^\\]\\[]+ "]"', yes=["ab]"], no=["a["])
    check("ebnf", 'root ::= ("a" | "b" c?){2,3}\nc ::= "c" root?\n', yes=["abc", "aa"], more=["a"], no=["c"])
    check("ebnf", 'start: A "!"\nA: /[a-z]+/', yes=["ab!"], more=["ab"])


def test_choices_and_regular_expressions() -> None:
    check("choice", ["yes", "no", "nope"], yes=["yes", "no", "nope"], more=["n", ""], no=["x"])
    check("choice", ['a"\\\n', "é"], yes=['a"\\\n', "é"])
    check("regex", r"\d{3}-[A-Z]+", yes=["123-AB"], more=["12"], no=["123-a"])
    check("regex", "(a|b)*/c", yes=["/c", "ab/c"])


def test_schemas() -> None:
    check("json_schema", SCHEMA, yes=['{"a": 1}'], more=['{"a"'], no=['{"b"', '{"a":1', "x"])
    check("json_object", "", yes=['{"x": [1, "y"]}', "{}"], no=["[", "1"])
    lax = {**SCHEMA, "x-guidance": {"lenient": True}, "not": {}}
    with pytest.raises(InvalidRequest, match="not"):
        check("json_schema", lax)


def test_structures_and_triggers() -> None:
    value = {
        "structures": [
            {"begin": "<function=f>", "schema": SCHEMA, "end": "</function>"},
            {"begin": "<function=g>", "schema": {"type": "null"}, "end": "</function>"},
        ],
        "triggers": ["<function="],
    }
    check(
        "structural_tag",
        {"type": "structural_tag", **value},
        yes=["hi", 'x<function=f>{"a": 1}</function> and', '<function=g>null</function><function=f>{"a": 2}</function>'],
        no=["<function=h>", '<function=f>{"b"', "<function=g>{"],
        more=["<function=f>"],
    )


def test_the_forms_of_a_structural_tag() -> None:
    text, form = {"type": "any_text"}, {"type": "json_schema", "json_schema": SCHEMA}
    thinking = {"type": "sequence", "elements": [tag("<think>", text, "</think>"), form]}
    check("structural_tag", {"format": thinking}, yes=['<think>hm</think>{"a": 1}'], no=['{"a', "<think>x</think>y"])
    call = tag("<|im_start|>call ", {"type": "regex", "pattern": "[a-c]/\\d"}, ";")
    triggered = {"type": "triggered_tags", "triggers": ["<|im_start|>"], "tags": [call], "stop_after_first": True}
    check("structural_tag", {"format": triggered}, yes=["free", "x<|im_start|>call b/3;"], no=["x<|im_start|>foo"])
    tags = [
        tag("[", {"type": "grammar", "grammar": 'root ::= "a" | "b"'}, "]"),
        tag("(", {"type": "const_string", "value": "é"}, [")", "!"]),
    ]
    separated = {"type": "tags_with_separator", "separator": ", ", "at_least_one": True, "tags": tags}
    check("structural_tag", {"format": separated}, yes=["[a], (é!", "(é)"], no=["[c", "x"], more=["", "[a], "])
    either = {"type": "or", "elements": [{"type": "const_string", "value": "yes"}, {"type": "regex", "pattern": "no+"}]}
    check("structural_tag", {"format": either}, yes=["yes", "nooo"], no=["maybe"])


@pytest.mark.parametrize(
    "value",
    [
        [], {}, {"format": 3}, {"format": {"type": "qwen_xml_parameter"}}, {"structures": [3], "triggers": []},
        {"format": {"type": "sequence", "elements": [{"type": "any_text"}, {"type": "const_string", "value": "x"}]}},
        {"format": {"type": "triggered_tags", "triggers": ["<a"], "tags": [tag("<b", {"type": "any_text"}, ">")]}},
        {"format": {"type": "triggered_tags", "triggers": ["<a"], "tags": []}},
        {"format": {"type": "any_text", "excludes": ["x"]}}, {"structures": [], "triggers": ["<"]},
    ],
)  # fmt: skip
def test_a_structural_tag_that_is_not_understood_is_refused(value: Any) -> None:
    with pytest.raises(InvalidRequest) as caught:
        check_constraint(Constraint("structural_tag", json.dumps(value)), OPTIONS)
    assert caught.value.param == "structural_tag"


@pytest.mark.parametrize(
    ("kind", "text"),
    [("ebnf", "root ::= undefined"), ("ebnf", "nothing"), ("ebnf", 'root ::= "a'), ("regex", "("), ("regex", "(?=a)"),
     ("choice", "[]"), ("choice", '[""]'), ("choice", "x"), ("json_schema", "3"), ("json_schema", '{"type": "x"}')],
)  # fmt: skip
def test_what_does_not_compile_is_refused(kind: Any, text: str) -> None:
    for judge_it in (lambda c: check_constraint(c, OPTIONS), BACKEND.compile):
        with pytest.raises(InvalidRequest) as caught:
            judge_it(Constraint(kind, text))
        assert caught.value.param == kind and kind in caught.value.message


def test_a_completion_that_needs_more_states_than_the_limit_ends_with_an_error() -> None:
    constraint = Constraint("regex", "(a|b)*a(a|b){9}")

    def error_of(limits: GrammarLimits) -> str:
        backend = GuidanceBackend(VOCABULARY, GrammarOptions(limits=limits))
        matcher, masks = backend.compile(constraint).start(), np.zeros((1, -(-VOCABULARY.size // 32)), np.uint32)
        for byte in b"abbabaabbbaabababbababbbabaabab":
            backend.fill([(matcher, 0)], masks)
            matcher.accept(byte)
        return matcher.error

    assert error_of(GrammarLimits()) == ""
    assert "too many" in error_of(GrammarLimits(regex_states=16))
