"""Calls that must be made: what the worker is told, and what is refused."""

from __future__ import annotations

import json
from typing import Any

import pytest
from serverkit import House, ask
from test_tool_calls import PARAMETERS, THINKING, THOUGHTS, TOOL, body, chat, choice_of, deltas_of, speaking

from sapwood.messages.types import Submit
from sapwood.parsing.formats import THINK_TAGS, OutputFormat
from sapwood.server.tooling import Choice, make_function, make_tool_use

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
    schema = make_tool_use(functions, Choice("required")).call_schema
    assert set(schema["$defs"]) == {"a.Place", "b.Place"}
    assert schema["$defs"]["b.Place"]["properties"]["in"] == {"$ref": "#/$defs/b.Place"}
    first = schema["items"]["anyOf"][0]["properties"]["parameters"]
    assert first["properties"]["where"] == {"$ref": "#/$defs/a.Place"} and "$defs" not in first


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


def test_strict_or_not_a_forced_call_is_bound() -> None:
    for form in ("glm", "none"):
        assert chat(speaking(FORCED, tool_call_parser=form), tools=[STRICT], tool_choice="required").status_code == 200


def test_anthropics_any_is_forced() -> None:
    house = speaking(FORCED)
    tools = [{"name": "f", "input_schema": PARAMETERS}, {"name": "g"}]
    choice = {"type": "any", "disable_parallel_tool_use": True}
    sent = {"max_tokens": 200, "messages": body()["messages"], "tools": tools, "tool_choice": choice, "stop_sequences": ["\0"]}
    answer = ask(house, "POST", "/v1/messages", json=sent).json()
    assert [block["name"] for block in answer["content"]] == ["f"] and answer["stop_reason"] == "tool_use"
    assert json.loads(constraint_of(house).text)["maxItems"] == 1
