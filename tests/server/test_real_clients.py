"""What agents and user interfaces send beyond the books: it works, or is refused by name, and errors say what they look for."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from serverkit import FakeBackend, House, ask, make_house
from test_strict_calls import WRITINGS, Bound, arguments_of, call_of, constraint_of, form_of, marks_of, written
from test_tool_calls import CALLS, EXPECTED, OTHER, TOOL, USER, chat, choice_of, prompt_of, speaking
from test_usage import events_of

from sapwood.messages.types import Submit
from sapwood.parsing.formats import HARMONY

CHAT, MESSAGES, RESPONSES, OLLAMA = "/v1/chat/completions", "/v1/messages", "/v1/responses", "/api/chat"
CACHED = {"cache_control": {"type": "ephemeral"}}
SCHEMA = {"$schema": "https://json-schema.org/draft/2020-12/schema", "type": "object", "properties": {"city": {"type": "string"}}}


def params_of(house: House) -> Any:
    return house.backend.sent_of(Submit)[-1].params


# ---------------------------------------------------------------------------------------------------------- Anthropic
CODING_AGENT: dict[str, Any] = {
    "model": "fake",
    "max_tokens": 32_000,
    "temperature": 1,
    "stop_sequences": ["\0"],
    "system": [{"type": "text", "text": "You are an agent."}, {"type": "text", "text": "Be brief.", **CACHED}],
    "thinking": {"type": "enabled", "budget_tokens": 31_999},
    "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
    "output_config": {"effort": "medium"},
    "metadata": {"user_id": "user_1"},
    "tools": [
        {"name": "f", "description": "Looks.", "input_schema": SCHEMA, "eager_input_streaming": True},
        {"name": "g", "input_schema": {"type": "object"}, "type": "custom", **CACHED},
    ],
    "messages": [
        {"role": "user", "content": [{"type": "text", "text": "<system-reminder>"}, {"type": "text", "text": "look", **CACHED}]},
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "Hm.", "signature": ""},
                {"type": "redacted_thinking", "data": "xyz"},
                {"type": "text", "text": "I look.", "citations": None},
                {"type": "tool_use", "id": "toolu_1", "name": "f", "input": {"city": "Oslo"}, **CACHED},
            ],
        },
        {
            "role": "user",
            "content": [
                {
                    "type": "tool_result",
                    "tool_use_id": "toolu_1",
                    "content": [{"type": "text", "text": "denied"}],
                    "is_error": True,
                },
                {"type": "text", "text": "go on", **CACHED},
            ],
        },
    ],
}


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
def test_a_coding_agents_turn(stream: bool) -> None:
    house = speaking(CALLS)
    headers = {
        "anthropic-version": "2023-06-01",
        "anthropic-beta": "context-management-2025-06-27,interleaved-thinking-2025-05-14",
    }
    path = f"{MESSAGES}?beta=true"
    events = events_of(ask(house, "POST", path, json={**CODING_AGENT, "stream": stream}, headers=headers))
    blocks = [event["content_block"] for event in events if event["type"] == "content_block_start"] or events[0].get("content")
    assert [(block["type"], block.get("name")) for block in blocks] == [("text", None), ("tool_use", "f"), ("tool_use", "g")]
    last = events[-2]["delta"] if stream else events[0]
    assert last["stop_reason"] == "tool_use"
    prompt = prompt_of(house)
    assert "Error: denied" in prompt and '"arguments": {"city": "Oslo"}' in prompt and "<system-reminder>\nlook" in prompt
    counted = ask(house, "POST", f"{MESSAGES}/count_tokens?beta=true", json=CODING_AGENT, headers=headers)
    assert counted.status_code == 200 and counted.json()["input_tokens"] > 100


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
def test_the_limit_of_a_message_gives_way_to_the_context_and_the_reason_says_so(stream: bool) -> None:
    for limit, made, reason in ((5, 5, "max_tokens"), (5000, None, "model_context_window_exceeded")):
        body = {"max_tokens": limit, "messages": USER, "stream": stream}
        *_, last = [event for event in events_of(ask(make_house(), "POST", MESSAGES, json=body)) if "usage" in event]
        usage = last["usage"]
        prompt = usage["input_tokens"] + usage["cache_read_input_tokens"]
        assert usage["output_tokens"] == (made or 256 - prompt)
        assert (last["delta"] if stream else last)["stop_reason"] == reason


@pytest.mark.parametrize("thinking", [{"type": "enabled", "budget_tokens": 1024}, {"type": "adaptive"}, {"type": "disabled"}])
def test_a_model_that_never_thinks_has_leave_to(thinking: Any) -> None:
    body = {"max_tokens": 4, "messages": USER, "thinking": thinking}
    assert [block["type"] for block in ask(make_house(), "POST", MESSAGES, json=body).json()["content"]] == ["text"]


def test_the_id_of_a_request_has_anthropics_name_too() -> None:
    headers = ask(
        make_house(), "POST", MESSAGES, json={"max_tokens": 1, "messages": USER}, headers={"x-request-id": "r1"}
    ).headers
    assert headers["request-id"] == headers["x-request-id"] == "r1"
    assert "request-id" not in ask(make_house(), "GET", "/v1/models").headers


def test_messages_without_content_are_refused() -> None:
    for system in ("be brief", None):
        body = {"max_tokens": 4, "system": system, "messages": [{"role": "user", "content": []}]}
        response = ask(make_house(), "POST", MESSAGES, json=body)
        assert response.status_code == 400 and "messages" in response.json()["error"]["message"]


# ------------------------------------------------------------------------------------------------- too long a prompt
@pytest.mark.parametrize("text", ["x" * 300, "x" * 400_000], ids=["counted", "at-a-glance"])
def test_agents_are_told_in_their_words_that_the_prompt_is_too_long(text: str) -> None:
    turns = [{"role": "user", "content": text}]
    for path, body in ((CHAT, {"messages": turns}), ("/v1/completions", {"prompt": text}), (RESPONSES, {"input": text})):
        error = ask(make_house(), "POST", path, json=body).json()["error"]
        assert error["code"] == "context_length_exceeded" and error["type"] == "invalid_request_error", error
        assert "this model's maximum context length is" in error["message"]
    error = ask(make_house(), "POST", MESSAGES, json={"max_tokens": 5, "messages": turns}).json()["error"]
    assert error["type"] == "invalid_request_error" and error["message"].startswith("prompt is too long: ")
    if len(text) == 300:
        assert re.search(r"prompt is too long[^0-9]*(\d+) tokens > (\d+)", error["message"])
    too_many = ask(make_house(), "POST", CHAT, json={"messages": USER, "max_tokens": 5000}).json()["error"]
    assert (too_many["code"], too_many["param"]) == ("context_length_exceeded", "max_tokens")


# ------------------------------------------------------------------------------------------------------------- OpenAI
def test_names_and_values_of_other_servers() -> None:
    house = make_house(FakeBackend("abc\0"))
    neutral = {"mirostat": 0, "typical_p": 1, "tfs_z": 1.0, "xtc_probability": 0, "dry_multiplier": 0.0, "top_n_sigma": -1}
    hints = {
        "cache_prompt": True,
        "id_slot": -1,
        "timings_per_token": True,
        "chat_id": "c",
        "features": {},
        "service_tier": "auto",
    }
    body = {"top_k": 0, "repeat_penalty": 1.2, "n_predict": 3, "seed": -1, **neutral, **hints}
    assert ask(house, "POST", CHAT, json={"messages": USER, **body}).json()["usage"]["completion_tokens"] == 3
    params = params_of(house)
    assert (params.top_k, params.repetition_penalty, params.max_new_tokens) == (-1, 1.2, 3)


@pytest.mark.parametrize("name", ["max_tokens", "max_completion_tokens", "n_predict"])
def test_a_limit_of_minus_one_is_none(name: str) -> None:
    for path, body in ((CHAT, {"messages": USER}), ("/v1/completions", {"prompt": "hi"})):
        usage = ask(make_house(), "POST", path, json={**body, name: -1}).json()["usage"]
        assert usage["total_tokens"] == 256


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"mirostat": 2}, "mirostat"), ({"typical_p": 0.7}, "typical_p"), ({"dry_multiplier": 0.8}, "dry_multiplier"),
        ({"xtc_probability": 0.5}, "xtc_probability"), ({"repeat_penalty": 0}, "repeat_penalty"),
        ({"max_tokens": -2}, "max_tokens"), ({"n_predict": -2}, "n_predict"), ({"top_n_sigma": 1.0}, "top_n_sigma"),
    ],
)  # fmt: skip
def test_samplers_that_are_not_here_are_refused_by_name(fields: dict[str, Any], param: str) -> None:
    error = ask(make_house(), "POST", CHAT, json={"messages": USER, **fields}).json()["error"]
    assert error["param"] == param and param in error["message"]


def test_broken_arguments_of_an_earlier_call_are_no_dead_end() -> None:
    house = speaking("Fine.")
    for arguments, seen in (
        ('{"city": "Oslo", "da', '{"city": "Oslo"}'),
        ("", "{}"),
        ("[1]", "{}"),
        ('{"city": "Rom"}', '{"city": "Rom"}'),
    ):
        call = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": arguments}}
        turns = [
            *USER,
            {"role": "assistant", "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "c1", "content": "not JSON"},
        ]
        assert choice_of(house, messages=turns)["message"]["content"] == "Fine."
        assert f'"arguments": {seen}}}' in prompt_of(house)


MISTRAL = (
    "{% for m in messages %}{% if m.tool_calls is defined %}{% for c in m.tool_calls %}"
    "{% if c.id is not defined or c.id|length != 9 %}"
    "{{ raise_exception('ids must have 9 characters') }}{% endif %}[{{ c.id }}]{% endfor %}{% endif %}"
    "{% if m.role == 'tool' %}({{ m.tool_call_id }}){% endif %}{% endfor %}{{ tools }}[TOOL_CALLS]"
)


@pytest.mark.parametrize("fields", [{}, {"tool_choice": "required"}])
def test_ids_of_calls_fit_mistrals_templates(fields: dict[str, Any]) -> None:
    said = '[{"name": "f", "parameters": {"city": "Oslo"}}]' if fields else '[TOOL_CALLS]f[ARGS]{"city": "Oslo"}'
    house = speaking(said, MISTRAL)
    [call] = choice_of(house, **fields)["message"]["tool_calls"]
    assert re.fullmatch("[A-Za-z0-9]{9}", call["id"])
    foreign = {**call, "id": "call_of_another_server"}
    turns = [
        *USER, {"role": "assistant", "tool_calls": [call, foreign]},
        *({"role": "tool", "tool_call_id": each["id"], "content": "rain"} for each in (call, foreign)),
    ]  # fmt: skip
    choice_of(house, messages=turns)
    first, second, *results = re.findall(r"[\[(]([a-zA-Z0-9]{9})[\])]", prompt_of(house))
    assert first == call["id"] and results == [first, second]


# --------------------------------------------------------------------------------------- tools and a form of the answer
ANSWER = {"type": "object", "properties": {"sum": {"type": "integer"}}, "required": ["sum"], "additionalProperties": False}
FORMAT = {"response_format": {"type": "json_schema", "json_schema": {"name": "answer", "strict": True, "schema": ANSWER}}}


@pytest.mark.parametrize("is_strict", [False, True], ids=["free", "strict"])
@pytest.mark.parametrize("writing", [writing for writing in WRITINGS if writing != "llama3"])
def test_an_agent_calls_tools_or_answers_in_its_form(writing: str, is_strict: bool) -> None:
    tools = [{"type": "function", "function": {**TOOL["function"], "strict": is_strict}}, OTHER]
    answer, calls = '{"sum": 5}', [("f", {"city": "Oslo"}), ("g", {})]
    house = speaking(answer, tool_call_parser=form_of(writing))
    message = choice_of(house, tools=tools, **FORMAT)["message"]
    assert message["content"] == answer and "tool_calls" not in message
    start = "<|channel|>final<|message|>" if form_of(writing) == HARMONY else ""
    called = written(writing, calls)
    called = called if form_of(writing) == HARMONY else called.removeprefix("Well.").removeprefix("\n")
    for marks in ([], marks_of(writing)):
        bound = Bound(constraint_of(house), marks)
        assert bound.takes(start + answer) and bound.takes(called)
        for wrong in (start + '{"sum": "5"}', start + "Five.", start + f"Five.{called}"):
            assert not bound.takes(wrong), wrong
    assert arguments_of(speaking(called, tool_call_parser=form_of(writing)), tools=tools, **FORMAT) == calls


def test_the_same_on_the_other_routes() -> None:
    call = call_of("hermes", "f", {"city": "Oslo"})
    function = TOOL["function"]
    responses = {
        "input": "hi", "tools": [{"type": "function", **function}], "stop": ["\0"],
        "text": {"format": {"type": "json_schema", "name": "x", "schema": ANSWER}},
    }  # fmt: skip
    messages = {
        "max_tokens": 200, "messages": USER, "stop_sequences": ["\0"],
        "tools": [{"name": "f", "input_schema": function["parameters"]}],
        "output_config": {"format": {"type": "json_schema", "schema": ANSWER}},
    }  # fmt: skip
    ollama = {"messages": USER, "tools": [TOOL], "format": "json", "stream": False, "options": {"stop": ["\0"]}}
    for path, body in ((RESPONSES, responses), (MESSAGES, messages), (OLLAMA, ollama)):
        house = speaking(call)
        response = ask(house, "POST", path, json=body)
        assert response.status_code == 200 and '"f"' in response.text, response.text
        assert constraint_of(house).kind == "structural_tag"


# ---------------------------------------------------------------------------------------------------------- responses
def test_a_coding_agents_response() -> None:
    house = speaking(CALLS)
    body: dict[str, Any] = {
        "model": "fake", "instructions": "Be brief.", "store": False, "stream": True, "include": ["reasoning.encrypted_content"],
        "prompt_cache_key": "k", "reasoning": {"effort": "medium", "summary": "auto"}, "text": {"verbosity": "low"},
        "truncation": "disabled", "service_tier": None, "client_metadata": {}, "tool_choice": "auto", "stop": ["\0"],
        "tools": [{"type": "function", **TOOL["function"], "strict": False}, {"type": "function", "name": "g", "strict": None}],
        "input": [
            {"type": "message", "role": "developer", "content": [{"type": "input_text", "text": "rules"}]},
            {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "look"}]},
            {"type": "reasoning", "id": "rs_1", "summary": [{"type": "summary_text", "text": "Hm."}], "encrypted_content": None},
            {"type": "function_call", "call_id": "c1", "name": "f", "arguments": '{"city": "Oslo"}'},
            {"type": "function_call_output", "call_id": "c1", "output": [{"type": "input_text", "text": "rain"}]},
            {"type": "message", "role": "assistant", "id": "msg_1", "status": "completed", "phase": "final_answer",
             "content": [{"type": "output_text", "text": "It rains.", "annotations": [], "logprobs": []}]},
            {"type": "message", "role": "user", "content": "and now?"},
        ],
    }  # fmt: skip
    events = events_of(ask(house, "POST", RESPONSES, json=body))
    items = [event["item"] for event in events if event["type"] == "response.output_item.done"]
    assert [(item["name"], json.loads(item["arguments"])) for item in items if item["type"] == "function_call"] == EXPECTED
    assert events[-1]["type"] == "response.completed" and events[-1]["response"]["usage"]["output_tokens"] > 0
    prompt = prompt_of(house)
    assert "rules" in prompt and "<tool_response>\nrain" in prompt and "It rains." in prompt


def test_items_that_only_name_one_of_a_stored_response() -> None:
    house = speaking("Oslo.")
    first = ask(house, "POST", RESPONSES, json={"input": "Which city?", "stop": ["\0"]}).json()
    reference = {"type": "item_reference", "id": first["output"][0]["id"]}
    more = {"role": "user", "content": "Sure?"}
    second = ask(house, "POST", RESPONSES, json={"input": [reference, more], "stop": ["\0"]})
    assert second.status_code == 200 and "assistant\nOslo." in prompt_of(house)
    error = ask(house, "POST", RESPONSES, json={"input": [{"type": "item_reference", "id": "msg_x"}]}).json()["error"]
    assert error["param"] == "input[0].id" and "send the item itself" in error["message"]


def test_log_probabilities_of_responses_are_refused() -> None:
    error = ask(speaking("x"), "POST", RESPONSES, json={"input": "x", "include": ["message.output_text.logprobs"]}).json()[
        "error"
    ]
    assert error["param"] == "include"


# -------------------------------------------------------------------------------------------------------------- Ollama
def test_ollamas_clients_find_a_server_that_they_talk_to() -> None:
    house = make_house()
    assert ask(house, "HEAD", "/").status_code == 200, "Ollama's own command line asks that first"
    version = ask(house, "GET", "/api/version").json()["version"]
    assert tuple(map(int, version.split("."))) >= (0, 6, 4), "editors refuse older ones"
    info = ask(house, "POST", "/api/show", json={"model": "fake"}).json()["model_info"]
    assert info[f"{info['general.architecture']}.context_length"] == 256 and info["general.basename"] == "fake"


def test_ollamas_options_that_do_nothing_are_no_mistake() -> None:
    house = make_house()
    options = {
        "repeat_last_n": 64,
        "repeat_penalty": 1.0,
        "top_k": 0,
        "num_predict": 2,
        "num_ctx": 8192,
        "penalize_newline": True,
    }
    body = {"model": "fake:latest", "messages": USER, "stream": False, "keep_alive": 0, "options": options}
    assert ask(house, "POST", OLLAMA, json=body).json()["eval_count"] == 2
    assert params_of(house).top_k == -1
    refused = ask(house, "POST", OLLAMA, json={**body, "options": {**options, "repeat_penalty": 1.1}})
    assert refused.status_code == 400 and "options.repeat_last_n" in refused.json()["error"]


def test_calls_come_back_to_ollama_without_ids() -> None:
    house = speaking("Fine.")
    call = {"function": {"index": 0, "name": "f", "arguments": {"city": "Oslo"}}}
    turns = [
        *USER,
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "tool_name": "f", "content": "rain"},
    ]
    body = {"messages": turns, "tools": [TOOL], "stream": False, "options": {"stop": ["\0"]}}
    assert ask(house, "POST", OLLAMA, json=body).json()["message"]["content"].startswith("Fine.")
    assert '"arguments": {"city": "Oslo"}' in prompt_of(house) and "rain" in prompt_of(house)


def test_null_fields_are_fields_left_out() -> None:
    nothing = dict.fromkeys(
        ("temperature", "top_p", "n", "stop", "seed", "tools", "tool_choice", "response_format", "logit_bias", "user", "stream",
         "stream_options", "functions", "function_call", "parallel_tool_calls", "audio", "modalities", "prediction", "store")
    )  # fmt: skip
    message = {
        "role": "assistant",
        "content": "a",
        "refusal": None,
        "annotations": [],
        "audio": None,
        "function_call": None,
        "tool_calls": None,
    }
    assert chat(speaking("x"), **nothing, messages=[*USER, message, *USER]).status_code == 200


# --------------------------------------------------------------------------------------------------------------- tools
@pytest.mark.parametrize("mode", ["auto", "required"])
def test_some_tools_only_may_be_allowed(mode: str) -> None:
    said = CALLS if mode == "auto" else '[{"name": "g", "parameters": {}}]'
    allowed = {"mode": mode, "tools": [{"type": "function", "function": {"name": "g"}}]}
    house = speaking(said)
    assert arguments_of(house, tool_choice={"type": "allowed_tools", "allowed_tools": allowed}) == [("g", {})]
    assert '"name": "f"' in prompt_of(house), "it is shown, so that the prompt stays the same"
    flat = {"type": "allowed_tools", "mode": mode, "tools": [{"type": "function", "name": "g"}]}
    body = {"input": "hi", "tools": [{"type": "function", **each["function"]} for each in (TOOL, OTHER)], "tool_choice": flat}
    output = ask(speaking(said), "POST", RESPONSES, json={**body, "stop": ["\0"]}).json()["output"]
    assert [item["name"] for item in output if item["type"] == "function_call"] == ["g"]


@pytest.mark.parametrize("tools", [[], [{"type": "function", "function": {"name": "h"}}], [{"type": "web_search"}], ["g"]])
def test_what_cannot_be_allowed_is_refused(tools: Any) -> None:
    choice = {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": tools}}
    assert chat(speaking("x"), tool_choice=choice).json()["error"]["param"] == "tool_choice"


def test_qwen3_coder_leaves_out_its_first_tag_now_and_then() -> None:
    text = "Well.\n<function=f>\n<parameter=city>\nOslo\n</parameter>\n</function>\n</tool_call>"
    assert arguments_of(speaking(text, tool_call_parser="qwen3-coder")) == [("f", {"city": "Oslo"})]


@pytest.mark.parametrize("form", ["glm", "qwen3-coder"])
def test_values_between_tags_are_what_their_schema_says(form: str) -> None:
    kinds: dict[str, Any] = {
        "maybe": {"anyOf": [{"type": "string"}, {"type": "null"}]},
        "code": {"type": ["string", "null"]},
        "zip": {"type": "string"},
        "flag": {"type": "boolean"},
        "big": {"type": "number"},
        "list": {"type": "array", "items": {"type": "string"}},
        "any": {},
        "pick": {"$ref": "#/$defs/Pick"},
    }
    tool = {"name": "f", "parameters": {"type": "object", "properties": kinds, "$defs": {"Pick": {"enum": ["1", "2"]}}}}
    end = "</arg_value>" if form == "glm" else "</parameter>"
    values = {
        "maybe": "5",
        "code": "null",
        "zip": "01234",
        "flag": "True",
        "big": "1e999",
        "list": f'["{end}"]',
        "any": "[1]",
        "pick": "1",
    }
    expected = {**values, "code": None, "flag": True, "list": [end], "any": [1]}
    text = call_of(form, "f", values)
    assert arguments_of(speaking(text, tool_call_parser=form), tools=[{"type": "function", "function": tool}]) == [
        ("f", expected)
    ]


def test_python_spells_a_character_in_two_halves() -> None:
    house = speaking('[f(city="\\ud83d\\ude00")]', tool_call_parser="pythonic")
    assert arguments_of(house) == [("f", {"city": "\U0001f600"})]


def test_a_base_url_without_v1_is_told_so() -> None:
    error = ask(make_house(), "POST", "/chat/completions", json={}).json()["error"]
    assert error["code"] == "not_found" and "/v1" in error["message"]
    assert "/docs" in ask(make_house(), "GET", "/nothing").json()["error"]["message"]
