"""Calls that must be made, and arguments that must follow their schema: what the worker is told, and what is refused."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from serverkit import House, ask
from test_tool_calls import OTHER, PARAMETERS, THINKING, THOUGHTS, TOOL, body, chat, choice_of, deltas_of, speaking

from sapwood.grammar.api import GrammarOptions, Vocabulary
from sapwood.grammar.guidance import GuidanceBackend
from sapwood.messages.types import Submit
from sapwood.parsing.formats import THINK_TAGS, OutputFormat
from sapwood.server.tooling import make_function, make_tool_use

FORCED = '[{"name": "f", "parameters": {"city": "Zürich"}}, {"name": "g", "parameters": {}}]'
NAMED = {"type": "function", "function": {"name": "f"}}
STRICT = {"type": "function", "function": {**TOOL["function"], "strict": True}}


def constraint_of(house: House) -> Any:
    return house.backend.sent_of(Submit)[-1].params.constraint


@pytest.mark.parametrize("choice", ["required", NAMED])
def test_a_forced_call_is_constrained_and_read(choice: Any) -> None:
    house = speaking(FORCED)
    message = choice_of(house, tool_choice=choice)["message"]
    names = [call["function"]["name"] for call in message["tool_calls"]]
    assert names == (["f", "g"] if choice == "required" else ["f"])
    constraint = constraint_of(house)
    schema = json.loads(constraint.text)
    assert constraint.kind == "json_schema" and schema["type"] == "array" and schema["minItems"] == 1
    assert ("maxItems" in schema) is (choice != "required")
    deltas = deltas_of(speaking(FORCED), tool_choice="required")
    streamed = "".join(c["function"]["arguments"] for d in deltas for c in d["delta"].get("tool_calls", []) if c["index"] == 0)
    assert json.loads(streamed) == {"city": "Zürich"} and deltas[-1]["finish_reason"] == "tool_calls"


def test_definitions_of_a_schema_move_with_it() -> None:
    parameters = {
        "type": "object",
        "properties": {"where": {"$ref": "#/$defs/Place"}},
        "$defs": {"Place": {"type": "object", "properties": {"in": {"$ref": "#/$defs/Place"}}}},
    }
    functions = [make_function("tools[0]", name, None, parameters) for name in ("a", "b")]
    schema = make_tool_use(functions, "required").call_schema
    assert set(schema["$defs"]) == {"a.Place", "b.Place"}
    assert schema["$defs"]["b.Place"]["properties"]["in"] == {"$ref": "#/$defs/b.Place"}
    first = schema["items"]["anyOf"][0]["properties"]["parameters"]
    assert first["properties"]["where"] == {"$ref": "#/$defs/a.Place"} and "$defs" not in first


def test_strict_functions_are_bound_where_they_are_called() -> None:
    house = speaking('<tool_call>\n{"name": "f", "arguments": {"city": "Oslo"}}\n</tool_call>')
    [call] = choice_of(house, tools=[STRICT, OTHER])["message"]["tool_calls"]
    assert json.loads(call["function"]["arguments"]) == {"city": "Oslo"}
    constraint = constraint_of(house)
    tag = json.loads(constraint.text)["format"]
    assert constraint.kind == "structural_tag" and tag["triggers"] == ["<tool_call>"]
    assert [each["content"]["json_schema"] for each in tag["tags"]] == [PARAMETERS, {"type": "object"}]
    bare = choice_of(speaking('{"name": "f", "arguments": {"city": 5}}'), tools=[STRICT])["message"]
    assert "tool_calls" not in bare, "what no grammar has bound does not count"


@pytest.mark.parametrize(
    ("form", "right", "wrong"),
    [
        ("hermes", '<tool_call>\n{"name": "f", "arguments": {"city": "Oslo"}}\n</tool_call>',
         '<tool_call>\n{"name": "f", "arguments": {"city": 5'),
        ("mistral", 'Well. [TOOL_CALLS]f[ARGS]{"city": "Oslo"}', "[TOOL_CALLS] ["),
        ("deepseek", '<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>f<｜tool▁sep｜>{"city": "Oslo"}'
         "<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
         '<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>f<｜tool▁sep｜>{"town'),
        ("deepseek", '<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>f\n```json\n{"city": "Oslo"}\n```'
         "<｜tool▁call▁end｜><｜tool▁calls▁end｜>", "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>h"),
    ],
)  # fmt: skip
def test_the_grammar_of_strict_calls_takes_what_the_parser_reads(form: str, right: str, wrong: str) -> None:
    house = speaking(right, tool_call_parser=form)
    strict = {"type": "function", "function": {**STRICT["function"], "parameters": {**PARAMETERS, "additionalProperties": False}}}
    [call] = choice_of(house, tools=[strict])["message"]["tool_calls"]
    assert json.loads(call["function"]["arguments"]) == {"city": "Oslo"}
    for marks in ([], re.findall(r"<｜[^｜]+｜>|\[[A-Z_]{4,}\]", right)):  # as text, and as control tokens
        ids = {mark: 257 + index for index, mark in enumerate(dict.fromkeys(marks))}
        tokens = [*(bytes([byte]) for byte in range(256)), b"<end>", *(mark.encode() for mark in ids)]
        vocabulary = Vocabulary(tokens, list(range(256, len(tokens))), [256], len(tokens), lambda text: list(text.encode()))
        grammar = GuidanceBackend(vocabulary, GrammarOptions(control_ids=ids)).compile(constraint_of(house))
        for text, expected in ((right, True), (wrong, False)):
            matcher = grammar.start()
            parts = re.split("(" + "|".join(map(re.escape, ids)) + ")", text) if ids else [text]
            follows = all(matcher.accept(token) for part in parts for token in ([ids[part]] if part in ids else part.encode()))
            assert (follows and (not expected or matcher.inner.is_accepting())) is expected  # type: ignore[attr-defined]


def test_a_model_that_thinks_is_bound_after_its_thoughts() -> None:
    house = speaking(THOUGHTS + FORCED, THINKING)
    message = choice_of(house, tool_choice="required")["message"]
    assert message["reasoning_content"] == "Hm. Zürich it is." and len(message["tool_calls"]) == 2
    form = house.context.model.output
    end = THINK_TAGS["qwen3"].end
    assert form.is_hybrid and form.thought_end("assistant\n") == end and form.thought_end(f"<think>\n\n{end}\n\n") == ""
    assert constraint_of(house).starts_after == tuple(end.encode())


def test_a_model_whose_template_only_knows_the_tags_is_bound_from_the_start() -> None:
    form = OutputFormat(reasoning_format="qwen3")
    assert form.thought_end("assistant\n") == "" and form.thought_end("assistant\n<think>\n") == "</think>"
    assert OutputFormat(reasoning_format="deepseek-r1").thought_end("assistant\n") == "</think>"


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"tool_choice": "required", "response_format": {"type": "json_object"}}, "tool_choice"),
        ({"tools": [{"type": "function", "function": {"name": "f", "parameters": {"properties": {"a": {"type": "x"}}}}}],
          "tool_choice": "required"}, "tools"),
    ],
)  # fmt: skip
def test_what_cannot_be_bound_is_refused(fields: dict[str, Any], param: str) -> None:
    response = chat(speaking(FORCED), **fields)
    assert response.status_code == 400 and response.json()["error"]["param"] == param, response.text


def test_formats_without_a_strict_form_refuse_it() -> None:
    house = speaking("x", tool_call_parser="glm")
    response = chat(house, tools=[STRICT])
    assert response.status_code == 400 and response.json()["error"]["param"] == "tools"
    assert chat(house, tools=[STRICT], tool_choice="required").status_code == 200


def test_anthropics_any_is_forced() -> None:
    house = speaking(FORCED)
    tools = [{"name": "f", "input_schema": PARAMETERS}, {"name": "g"}]
    choice = {"type": "any", "disable_parallel_tool_use": True}
    sent = {"max_tokens": 200, "messages": body()["messages"], "tools": tools, "tool_choice": choice, "stop_sequences": ["\0"]}
    answer = ask(house, "POST", "/v1/messages", json=sent).json()
    assert [block["name"] for block in answer["content"]] == ["f"] and answer["stop_reason"] == "tool_use"
    assert json.loads(constraint_of(house).text)["maxItems"] == 1
