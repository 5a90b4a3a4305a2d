"""Constraints under every name that clients have for them, and the 400 for those that cannot be honoured."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import time
from typing import Any

import pytest
from serverkit import House, ask, make_house
from test_tool_calls import chat, choice_of, speaking

from sapwood.core.constraint import MAX_CONSTRAINT_BYTES, Constraint
from sapwood.errors import InvalidRequest
from sapwood.grammar.check import ConstraintChecker
from sapwood.messages.types import Submit
from sapwood.parsing.formats import OutputFormat
from sapwood.server.app import create_app

CHAT, COMPLETIONS, GENERATE, OLLAMA = "/v1/chat/completions", "/v1/completions", "/generate", "/api/chat"
MESSAGES = "/v1/messages"
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"], "additionalProperties": False}
TAG = {"structures": [{"begin": "<f>", "schema": SCHEMA, "end": "</f>"}], "triggers": ["<f"]}
BODIES: dict[str, dict[str, Any]] = {
    CHAT: {"model": "fake", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 3},
    COMPLETIONS: {"model": "fake", "prompt": "hi", "max_tokens": 3},
    GENERATE: {"text": "hi"},
    OLLAMA: {"model": "fake", "messages": [{"role": "user", "content": "hi"}], "stream": False, "options": {"num_predict": 3}},
    MESSAGES: {"model": "fake", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 3},
}


def post(path: str, house: House | None = None, **fields: Any) -> Any:
    return ask(house or make_house(), "POST", path, json={**BODIES[path], **fields})


def schema(value: Any) -> dict[str, Any]:
    return {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "strict": True, "schema": value}}}


def sampling(**params: Any) -> dict[str, Any]:
    return {"sampling_params": {"max_new_tokens": 3, **params}}


HONOURED: list[tuple[str, dict[str, Any], str, Any]] = [
    (CHAT, {"response_format": {"type": "json_object"}}, "json_object", None),
    (CHAT, {"response_format": {"type": "json_object", "schema": SCHEMA}}, "json_schema", SCHEMA),
    (CHAT, schema(SCHEMA), "json_schema", SCHEMA),
    (COMPLETIONS, schema(SCHEMA), "json_schema", SCHEMA),
    (CHAT, {"response_format": {"type": "structural_tag", **TAG}}, "structural_tag", {"type": "structural_tag", **TAG}),
    (CHAT, {"regex": "a+b"}, "regex", "a+b"),
    (CHAT, {"ebnf": 'root ::= "a"'}, "ebnf", 'root ::= "a"'),
    (COMPLETIONS, {"grammar": 'root ::= "a"'}, "ebnf", 'root ::= "a"'),
    (COMPLETIONS, {"json_schema": SCHEMA}, "json_schema", SCHEMA),
    (CHAT, {"guided_json": json.dumps(SCHEMA)}, "json_schema", SCHEMA),
    (CHAT, {"guided_json": SCHEMA}, "json_schema", SCHEMA),
    (CHAT, {"guided_regex": "a+"}, "regex", "a+"),
    (CHAT, {"guided_choice": ["yes", "no"]}, "choice", ["yes", "no"]),
    (CHAT, {"guided_grammar": "start: /a+/"}, "ebnf", "start: /a+/"),
    (COMPLETIONS, {"structured_outputs": {"choice": ["yes", "no"]}}, "choice", ["yes", "no"]),
    (CHAT, {"structured_outputs": {"json": SCHEMA, "regex": None}}, "json_schema", SCHEMA),
    (CHAT, {"structured_outputs": {"json_object": True}}, "json_object", None),
    (CHAT, {"structured_outputs": {"grammar": 'root ::= "x"'}}, "ebnf", 'root ::= "x"'),
    (GENERATE, sampling(json_schema=json.dumps(SCHEMA)), "json_schema", SCHEMA),
    (GENERATE, sampling(json_schema="$$ANY$$"), "json_object", None),
    (GENERATE, sampling(regex="[0-9]+", ebnf=""), "regex", "[0-9]+"),
    (GENERATE, sampling(ebnf='root ::= "a" | "b"'), "ebnf", 'root ::= "a" | "b"'),
    (GENERATE, sampling(structural_tag=json.dumps(TAG)), "structural_tag", TAG),
    (OLLAMA, {"format": "json"}, "json_object", None),
    (OLLAMA, {"format": SCHEMA}, "json_schema", SCHEMA),
    (MESSAGES, {"output_config": {"format": {"type": "json_schema", "schema": SCHEMA}}}, "json_schema", SCHEMA),
    (MESSAGES, {"output_format": {"type": "json_schema", "schema": SCHEMA}}, "json_schema", SCHEMA),
]


@pytest.mark.parametrize(("path", "fields", "kind", "value"), HONOURED)
def test_every_name_comes_to_the_same_constraint(path: str, fields: dict[str, Any], kind: str, value: Any) -> None:
    house = make_house()
    reply = post(path, house, **fields)
    assert reply.status_code == 200, reply.text
    [submit] = house.backend.sent_of(Submit)
    constraint = submit.params.constraint
    assert constraint.kind == kind and constraint.starts_after == ()
    text = constraint.text
    assert (json.loads(text) if kind in ("json_schema", "structural_tag", "choice") else text or None) == value


def test_what_asks_for_nothing_is_free() -> None:
    for path, fields in ((CHAT, {"response_format": {"type": "text"}}), (GENERATE, sampling(regex="")), (OLLAMA, {"format": ""})):
        house = make_house()
        assert post(path, house, **fields).status_code == 200
        assert house.backend.sent_of(Submit)[0].params.constraint is None


WHERE = "response_format.json_schema.schema"
REFUSED: list[tuple[str, dict[str, Any], str]] = [
    (CHAT, schema({"type": "nonsense"}), WHERE),
    (CHAT, schema({"not": {}}), WHERE),
    (CHAT, schema({"$ref": "http://example.com/schema.json"}), WHERE),
    (CHAT, schema({"type": "array", "uniqueItems": True}), WHERE),
    (CHAT, {"response_format": {"type": "json_schema"}}, WHERE),
    (CHAT, {"response_format": {"type": "json_schema", "json_schema": {"schema": "x"}}}, WHERE),
    (CHAT, {"response_format": {"type": "xml"}}, "response_format"),
    (CHAT, {"response_format": {"type": "json_object"}, "regex": "a"}, "regex"),
    (CHAT, {"structured_outputs": {"json": SCHEMA, "regex": "a"}}, "structured_outputs.regex"),
    (CHAT, {"structured_outputs": {"whitespace_pattern": "x"}}, "structured_outputs.whitespace_pattern"),
    (CHAT, {"structured_outputs": {"grammar": "what"}}, "structured_outputs.grammar"),
    (CHAT, {"guided_choice": [""]}, "guided_choice"),
    (CHAT, {"guided_regex": "(?=a)"}, "guided_regex"),
    (CHAT, {"guided_whitespace_pattern": " "}, "guided_whitespace_pattern"),
    (COMPLETIONS, {"guided_json": "{"}, "guided_json"),
    (GENERATE, sampling(regex="a("), "regex"),
    (GENERATE, sampling(regex="a", ebnf='root ::= "a"'), "ebnf"),
    (GENERATE, sampling(ebnf="root ::= undefined"), "ebnf"),
    (GENERATE, sampling(structural_tag="{}"), "structural_tag"),
    (GENERATE, sampling(structural_tag=json.dumps({"format": {"type": "qwen_xml_parameter"}})), "structural_tag"),
    (GENERATE, sampling(json_schema=3), "sampling_params.json_schema"),
]


@pytest.mark.parametrize(("path", "fields", "param"), REFUSED)
def test_what_cannot_be_honoured_is_a_400_that_names_the_field(path: str, fields: dict[str, Any], param: str) -> None:
    house = make_house()
    reply = post(path, house, **fields)
    assert reply.status_code == 400, reply.text
    error = reply.json()["error"]
    assert error["param"] == param and param in error["message"]
    assert house.backend.sent_of(Submit) == []


def test_the_other_dialects_say_it_in_their_words() -> None:
    reply = post(OLLAMA, format={"type": "nonsense"})
    assert reply.status_code == 400 and reply.json()["error"].startswith("format ")
    reply = post(MESSAGES, output_config={"format": {"type": "json_schema", "schema": {"type": "nonsense"}}})
    assert reply.status_code == 400 and "output_config.format.schema" in reply.json()["error"]["message"]


def nested(depth: int) -> dict[str, Any]:
    value: dict[str, Any] = {"type": "integer"}
    for _ in range(depth):
        value = {"type": "object", "properties": {"a": value}, "required": ["a"]}
    return value


MALICIOUS: dict[str, Constraint] = {
    "deep schema": Constraint("json_schema", json.dumps(nested(400))),
    "endless recursion": Constraint(
        "json_schema", json.dumps({"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}})
    ),
    "doubling": Constraint(
        "json_schema",
        json.dumps(
            {"$ref": "#/$defs/d0", "$defs": {
                f"d{i}": {"allOf": [{"$ref": f"#/$defs/d{i + 1}"}] * 2} if i < 40 else {"type": "integer"} for i in range(41)
            }}
        ),
    ),
    "huge enum": Constraint("json_schema", json.dumps({"enum": [f"value number {i} of many" for i in range(50_000)]})),
    "wide counts": Constraint("json_schema", json.dumps({"type": "string", "maxLength": 2_000_000_000, "pattern": "^(ab|cd)*$"})),
    "nested counts": Constraint("regex", "(((a{1,1000}){1,1000}){1,1000}){1,1000}"),
    "catastrophic": Constraint("regex", "(a+)+" * 50 + "(a|aa)*(.*a){40}"),
    "intersection": Constraint("regex", "(.*[a-f].*[0-9]){300}"),
    "unicode": Constraint("regex", r"[\p{L}\p{N}]{0,5000}" * 20),
    "lookahead": Constraint("regex", "(?=a)b"),
    "long": Constraint("regex", "a" * (MAX_CONSTRAINT_BYTES + 1)),
    "huge grammar": Constraint("ebnf", "root ::= " + " | ".join(f"r{i}" for i in range(5000)) + "\n" + "\n".join(
        f'r{i} ::= "a" r{(i * 7 + 1) % 5000} | "b"' for i in range(5000))),
    "grammar counts": Constraint("ebnf", 'root ::= (("a"{0,10000}){0,10000}){0,10000}'),
    "open brackets": Constraint("ebnf", "root ::= " + "(" * 50_000),
    "many choices": Constraint("choice", json.dumps([f"c{i}" for i in range(20_000)])),
    "tags in tags": Constraint("structural_tag", json.dumps({"format": {"type": "or", "elements": [
        {"type": "or", "elements": [{"type": "const_string", "value": "x"}] * 200}] * 60}})),
    "surrogate": Constraint("regex", "a\ud800"),
}  # fmt: skip


@pytest.mark.parametrize("name", list(MALICIOUS))
def test_malice_is_answered_within_a_second_or_so(name: str) -> None:
    """Refused, or harmless: what is accepted was compiled within the limit, and the event loop was never held up for long."""

    async def judge() -> float:
        longest, stop = 0.0, asyncio.Event()

        async def watch() -> None:
            nonlocal longest
            while not stop.is_set():
                before = time.monotonic()
                await asyncio.sleep(0.005)
                longest = max(longest, time.monotonic() - before)

        watching = asyncio.ensure_future(watch())
        await asyncio.sleep(0.01)
        try:
            await ConstraintChecker().check(MALICIOUS[name], 1000)
        except InvalidRequest as error:
            assert len(error.message) < 700 and error.param == MALICIOUS[name].kind
        finally:
            stop.set()
            await watching
        return longest

    began = time.monotonic()
    longest_s = asyncio.run(judge())
    assert time.monotonic() - began < 4.0, "the limit is one second; a loaded machine gets more"
    assert longest_s < 1.0


def test_a_forced_call_is_a_constraint() -> None:
    tool = {"type": "function", "function": {"name": "f", "parameters": SCHEMA, "strict": True}}
    for choice in ("required", {"type": "function", "function": {"name": "f"}}):
        house = speaking('[{"name": "f", "parameters": {"a": 1}}]')
        answer = choice_of(house, tools=[tool], tool_choice=choice)
        [call] = answer["message"]["tool_calls"]
        assert call["function"]["name"] == "f" and json.loads(call["function"]["arguments"]) == {"a": 1}
        constraint = house.backend.sent_of(Submit)[0].params.constraint
        assert constraint.kind == "json_schema" and '"const":"f"' in constraint.text
    reply = chat(speaking("x"), tools=[tool], tool_choice="required", response_format={"type": "json_object"})
    assert reply.status_code == 400 and reply.json()["error"]["param"] == "tool_choice"
    bad = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "not": {}}}}
    reply = chat(speaking("x"), tools=[bad], tool_choice="required")
    assert reply.status_code == 400 and reply.json()["error"]["param"] == "tools"


def test_a_constraint_begins_when_the_model_has_thought() -> None:
    house = make_house()
    model = dataclasses.replace(house.context.model, output=OutputFormat(reasoning_format="qwen3", is_hybrid=True))
    context = dataclasses.replace(house.context, model=model)
    house.app = create_app(context)
    assert post(CHAT, house, regex="a+").status_code == 200
    assert house.backend.sent_of(Submit)[0].params.constraint.starts_after == tuple(b"</think>")


def test_constraints_can_be_switched_off() -> None:
    checker = ConstraintChecker(is_on=False)
    with pytest.raises(InvalidRequest, match="--grammar-backend none"):
        asyncio.run(checker.check(Constraint("regex", "a"), 1000))


def test_a_verdict_is_remembered_and_a_crowd_of_new_ones_is_limited() -> None:
    async def crowd() -> list[Any]:
        checker = ConstraintChecker()
        asked = (checker.check(Constraint("regex", f"a{{{i % 50}}}b("), 1000) for i in range(100))
        return await asyncio.gather(*asked, return_exceptions=True)

    errors = asyncio.run(crowd())
    assert all(isinstance(error, InvalidRequest) for error in errors)
    assert {"too many" in str(error) for error in errors} == {True, False}
