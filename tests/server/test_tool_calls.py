"""Calls of tools and reasoning on every chat route: offered, called, streamed, sent back; and what is refused."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import anthropic
import httpx
import ollama
import openai
import pytest
from serverkit import FakeBackend, House, ask, make_house, real_server

import sapwood
from sapwood.messages.types import Submit, unpack_ids

HERMES = (Path(sapwood.__file__).parent / "tokenizer/templates/hermes.jinja").read_text()
THINKING = HERMES + "{% if enable_thinking is defined and not enable_thinking %}<think>\n\n</think>\n\n{% endif %}"
PARAMETERS = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
TOOL = {"type": "function", "function": {"name": "f", "description": "A function.", "parameters": PARAMETERS}}
OTHER = {"type": "function", "function": {"name": "g"}}
CALLS = (
    'Let me see.\n<tool_call>\n{"name": "f", "arguments": {"city": "Zürich"}}\n</tool_call>\n<tool_call>\n'
    '{"name": "g", "arguments": {}}\n</tool_call>'
)
THOUGHTS = "<think>\nHm. Zürich it is.\n</think>\n\n"
USER: list[Any] = [{"role": "user", "content": "hi"}]
EXPECTED = [("f", {"city": "Zürich"}), ("g", {})]


def speaking(text: str, template: str = HERMES, **settings: Any) -> House:
    """A house whose model says `text` and stops."""
    return make_house(FakeBackend(text + "\0"), template=template, context_len=4096, **settings)


@contextmanager
def served(text: str, template: str = HERMES) -> Iterator[str]:
    with real_server(speaking(text, template)) as url:
        yield url


def body(**fields: Any) -> dict[str, Any]:
    return {"messages": USER, "tools": [TOOL, OTHER], "stop_token_ids": [0], **fields}


def chat(house: House, **fields: Any) -> httpx.Response:
    return ask(house, "POST", "/v1/chat/completions", json=body(**fields))


def choice_of(house: House, **fields: Any) -> Any:
    response = chat(house, **fields)
    assert response.status_code == 200, response.text
    return response.json()["choices"][0]


def deltas_of(house: House, **fields: Any) -> list[dict[str, Any]]:
    response = chat(house, stream=True, **fields)
    lines = [line.removeprefix("data: ") for line in response.text.split("\n\n") if line]
    assert lines.pop() == "[DONE]"
    return [json.loads(line)["choices"][0] for line in lines]


def prompt_of(house: House) -> str:
    ids = unpack_ids(house.backend.sent_of(Submit)[-1].token_ids)
    return house.backend.tokenizer.decode(ids, skip_special_tokens=False)


def test_calls_in_a_whole_answer() -> None:
    choice = choice_of(speaking(CALLS))
    assert choice["finish_reason"] == "tool_calls" and choice["message"]["content"] == "Let me see."
    calls = choice["message"]["tool_calls"]
    assert [(call["function"]["name"], json.loads(call["function"]["arguments"])) for call in calls] == EXPECTED
    assert all(call["type"] == "function" and call["id"].startswith("call_") for call in calls)


def test_calls_in_a_stream_follow_the_rules_of_index_and_id() -> None:
    choices = deltas_of(speaking(CALLS))
    assert choices[0]["delta"]["role"] == "assistant" and all("role" not in choice["delta"] for choice in choices[1:])
    assert "".join(choice["delta"].get("content", "") for choice in choices) == "Let me see."
    parts = [call for choice in choices for call in choice["delta"].get("tool_calls", [])]
    for index, (name, arguments) in enumerate(EXPECTED):
        first, *rest = [part for part in parts if part["index"] == index]
        assert first["id"] and first["type"] == "function" and first["function"] == {"name": name, "arguments": ""}
        assert all(set(part) == {"index", "function"} and set(part["function"]) == {"arguments"} for part in rest)
        assert json.loads("".join(part["function"]["arguments"] for part in rest)) == arguments
    assert [choice["finish_reason"] for choice in choices if choice["finish_reason"]] == ["tool_calls"]
    assert choices[-1] == {**choices[-1], "delta": {}, "finish_reason": "tool_calls"}


def test_a_call_alone_has_no_content() -> None:
    message = choice_of(speaking('<tool_call>{"name": "g"}</tool_call>'))["message"]
    assert message["content"] is None and message["tool_calls"][0]["function"] == {"name": "g", "arguments": "{}"}


def test_a_call_cut_by_the_length_ends_by_length() -> None:
    assert choice_of(speaking(CALLS), max_tokens=70)["finish_reason"] == "length"
    assert choice_of(speaking(CALLS), max_tokens=len(CALLS.encode()) + 1)["finish_reason"] == "tool_calls"


def test_one_call_at_a_time() -> None:
    for stream in (False, True):
        if stream:
            deltas = deltas_of(speaking(CALLS), parallel_tool_calls=False)
            indices = {call["index"] for choice in deltas for call in choice["delta"].get("tool_calls", [])}
            assert indices == {0}
        else:
            assert len(choice_of(speaking(CALLS), parallel_tool_calls=False)["message"]["tool_calls"]) == 1


@pytest.mark.parametrize("fields", [{"tool_choice": "none"}, {"tools": None}, {"tools": []}])
def test_without_tools_a_call_is_text(fields: dict[str, Any]) -> None:
    house = speaking(CALLS)
    choice = choice_of(house, **fields)
    assert choice["message"] == {"role": "assistant", "content": CALLS} and choice["finish_reason"] == "stop"
    assert "<tools>" not in prompt_of(house)


def test_tools_and_their_results_reach_the_model() -> None:
    house = speaking("Fine.")
    call = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": '{"city": "Oslo"}'}}
    turns = [*USER, {"role": "assistant", "tool_calls": [call]}, {"role": "tool", "tool_call_id": "c1", "content": "rain"}]
    assert choice_of(house, messages=turns)["message"]["content"] == "Fine."
    prompt = prompt_of(house)
    assert '"name": "f"' in prompt.partition("</tools>")[0] and "A function." in prompt
    assert '<tool_call>\n{"name": "f", "arguments": {"city": "Oslo"}}\n</tool_call>' in prompt
    assert "<tool_response>\nrain\n</tool_response>" in prompt


def test_a_tools_answer_has_the_tools_name() -> None:
    template = "{% for m in messages %}{{ m.role }}:{{ m.name if m.name is defined }};{% endfor %}{{ tools }}"
    house = speaking("Fine.", template)
    call = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    turns = [{"role": "assistant", "tool_calls": [call]}, {"role": "tool", "tool_call_id": "c1", "content": "rain"}]
    choice_of(house, messages=turns)
    assert prompt_of(house).startswith("assistant:;tool:f;")


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"tools": [{"type": "web_search"}]}, "tools[0]"),
    ({"tools": [{"type": "function", "function": {"name": "a b"}}]}, "tools[0].function.name"),
    (
        {"tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": "array"}}}]},
        "tools[0].function.parameters",
    ),
    ({"tools": [{"type": "function", "function": {"name": "f", "parameters": 5}}]}, "tools[0].function.parameters"),
    ({"tools": [{"type": "function", "function": {"name": "f", "description": 5}}]}, "tools[0].function.description"),
    ({"tools": [TOOL, TOOL]}, "tools"),
    ({"tools": "f"}, "tools"),
    ({"tool_choice": "sometimes"}, "tool_choice"),
    ({"tool_choice": {"type": "function", "function": {"name": "h"}}}, "tool_choice"),
    ({"tool_choice": "required", "tools": None}, "tool_choice"),
    ({"functions": [{"name": "f"}]}, "functions"),
    ({"function_call": {"name": "f"}}, "function_call"),
    ({"parallel_tool_calls": "yes"}, "parallel_tool_calls"),
]


@pytest.mark.parametrize(("fields", "param"), REFUSED, ids=lambda value: str(value)[:60])
def test_what_is_wrong_with_tools_is_named(fields: dict[str, Any], param: str) -> None:
    error = chat(speaking("x"), **fields).json()["error"]
    assert error["param"] == param and param in error["message"]


def test_a_template_without_tools_refuses_them() -> None:
    response = ask(make_house(), "POST", "/v1/chat/completions", json=body())
    assert response.status_code == 400 and response.json()["error"]["param"] == "tools"


# ---------------------------------------------------------------------------------------------------- reasoning
def test_reasoning_is_kept_apart() -> None:
    choice = choice_of(speaking(THOUGHTS + "Yes.", THINKING))
    assert choice["message"] == {"role": "assistant", "content": "Yes.", "reasoning_content": "Hm. Zürich it is."}
    deltas = [choice["delta"] for choice in deltas_of(speaking(THOUGHTS + "Yes.", THINKING))]
    assert "".join(delta.get("reasoning_content", "") for delta in deltas) == "Hm. Zürich it is."
    assert "".join(delta.get("content", "") for delta in deltas) == "Yes."
    held = [choice["delta"] for choice in deltas_of(speaking(THOUGHTS + "Yes.", THINKING), stream_reasoning=False)]
    assert [delta["reasoning_content"] for delta in held if "reasoning_content" in delta] == ["Hm. Zürich it is."]
    together = choice_of(speaking(THOUGHTS + "Yes.", THINKING), separate_reasoning=False)
    assert together["message"]["content"] == THOUGHTS + "Yes."


def test_reasoning_then_calls() -> None:
    choice = choice_of(speaking(THOUGHTS + CALLS, THINKING))
    assert choice["message"]["reasoning_content"] == "Hm. Zürich it is." and len(choice["message"]["tool_calls"]) == 2


def test_reasoning_tokens_are_counted() -> None:
    usage = chat(speaking(THOUGHTS + "Yes.", THINKING)).json()["usage"]
    num_reasoning = len(THOUGHTS.rstrip().encode())
    assert usage["completion_tokens_details"] == {"reasoning_tokens": num_reasoning}
    assert usage["completion_tokens"] == len((THOUGHTS + "Yes.").encode()) + 1


@pytest.mark.parametrize(
    "fields", [{"chat_template_kwargs": {"enable_thinking": False}}, {"reasoning_effort": "none"}], ids=lambda value: str(value)
)
def test_thinking_is_turned_off_through_the_template(fields: dict[str, Any]) -> None:
    house = speaking("Yes.", THINKING)
    assert choice_of(house, **fields)["message"]["content"] == "Yes."
    assert prompt_of(house).endswith("<think>\n\n</think>\n\n")
    house = speaking("Yes.", THINKING)
    choice_of(house, reasoning_effort="low")
    assert prompt_of(house).endswith("assistant\n")


def test_parsers_by_name() -> None:
    house = speaking("Hm.</think>" + CALLS, THINKING, reasoning_parser="deepseek-r1", tool_call_parser="none")
    assert choice_of(house)["message"] == {"role": "assistant", "content": CALLS, "reasoning_content": "Hm."}


def test_marks_that_are_control_tokens_are_seen() -> None:
    text = "<|im_start|>"
    house = speaking("", template="<|im_start|>{{ tools }}")
    assert house.context.model.output.tool_format == "hermes"
    choice_of(house)
    assert house.backend.sent_of(Submit)[-1].params.skip_special_tokens, text


# -------------------------------------------------------------------------------------------------- other clients
def test_anthropics_client_calls_tools() -> None:
    tools: list[Any] = [
        {"name": "f", "description": "A function.", "input_schema": PARAMETERS},
        {"name": "g", "input_schema": {}},
    ]
    with served(THOUGHTS + CALLS + "\0", THINKING) as url:
        client = anthropic.Anthropic(base_url=url, api_key="none", max_retries=0)
        call: dict[str, Any] = {"model": "fake", "max_tokens": 400, "messages": USER, "tools": tools, "stop_sequences": ["\0"]}
        message = client.messages.create(**call)
        assert [block.type for block in message.content] == ["thinking", "text", "tool_use", "tool_use"]
        assert [(block.name, block.input) for block in message.content if block.type == "tool_use"] == EXPECTED
        assert message.stop_reason == "tool_use"
        with client.messages.stream(**call) as stream:
            kinds = [event.type for event in stream]
            final = stream.get_final_message()
        assert "input_json" in kinds and "thinking" in kinds
        drawn = {"id": True}
        assert [block.model_dump(exclude=drawn) for block in final.content] == [
            block.model_dump(exclude=drawn) for block in message.content
        ]
        assert final.stop_reason == "tool_use" and final.usage.output_tokens == message.usage.output_tokens
        use = [block for block in message.content if block.type == "tool_use"][0]
        turns = [*USER, {"role": "assistant", "content": message.content}]
        turns.append({"role": "user", "content": [{"type": "tool_result", "tool_use_id": use.id, "content": "rain"}]})
        assert client.messages.create(**{**call, "messages": turns}).stop_reason == "tool_use"


ANTHROPIC_REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"tools": [{"name": "f", "type": "web_search_20250305"}]}, "tools[0].type"),
    ({"tools": [{"name": ""}]}, "tools[0].name"),
    ({"tool_choice": {"type": "tool", "name": "h"}}, "tool_choice"),
    ({"messages": [{"role": "user", "content": [{"type": "tool_result", "content": "x"}]}]}, "tool_use_id"),
    ({"messages": [{"role": "assistant", "content": [{"type": "tool_use", "id": "1"}]}]}, "messages[0].content[0]"),
    ({"thinking": {"type": "sometimes"}}, "thinking"),
]


@pytest.mark.parametrize(("fields", "name"), ANTHROPIC_REFUSED, ids=lambda value: str(value)[:60])
def test_what_is_wrong_with_anthropics_tools_is_named(fields: dict[str, Any], name: str) -> None:
    sent = {"max_tokens": 4, "messages": USER, **fields}
    response = ask(speaking("x"), "POST", "/v1/messages", json=sent)
    assert response.status_code == 400 and name in response.json()["error"]["message"], response.text


def test_ollamas_client_calls_tools() -> None:
    tools: list[Any] = [TOOL, OTHER]
    with served(THOUGHTS + CALLS + "\0", THINKING) as url:
        client = ollama.Client(host=url)
        options = {"stop": ["\0"]}
        whole = client.chat(model="fake", messages=USER, tools=tools, options=options)
        assert whole.message.thinking == "Hm. Zürich it is." and whole.message.content == "Let me see."
        assert [(call.function.name, dict(call.function.arguments)) for call in whole.message.tool_calls or []] == EXPECTED
        parts = list(client.chat(model="fake", messages=USER, tools=tools, options=options, stream=True))
        calls = [call for part in parts for call in part.message.tool_calls or []]
        assert [(call.function.name, dict(call.function.arguments)) for call in calls] == EXPECTED
        assert "".join(part.message.content or "" for part in parts) == "Let me see."
        assert "".join(part.message.thinking or "" for part in parts) == "Hm. Zürich it is."
        assert parts[-1].done_reason == "stop" and set(client.show("fake").capabilities or []) >= {"tools", "thinking"}
        turns = [*USER, whole.message, {"role": "tool", "tool_name": "f", "content": "rain"}]
        assert client.chat(model="fake", messages=turns, tools=tools, options=options).done


def test_openais_client_streams_calls() -> None:
    with served(CALLS) as url:
        client = openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)
        call: dict[str, Any] = {"model": "fake", "messages": USER, "tools": [TOOL, OTHER], "extra_body": {"stop_token_ids": [0]}}
        whole = client.chat.completions.create(**call).choices[0]
        with client.chat.completions.stream(**call) as stream:
            final = stream.until_done().get_final_completion().choices[0]
        assert final.finish_reason == whole.finish_reason == "tool_calls"
        for choice in (whole, final):
            calls = choice.message.tool_calls or []
            assert [(c.function.name, json.loads(c.function.arguments)) for c in calls if c.type == "function"] == EXPECTED
