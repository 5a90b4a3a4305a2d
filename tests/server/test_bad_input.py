"""Whatever a client sends: a 4xx in the dialect's shape whose message names the field, and a server that works afterwards."""

from __future__ import annotations

import json
from typing import Any

import pytest
from serverkit import ask, make_house

GENERATE, CHAT, COMPLETIONS = "/generate", "/v1/chat/completions", "/v1/completions"
USER = [{"role": "user", "content": "hi"}]
HUGE = 10**40


def sampling(**fields: Any) -> dict[str, Any]:
    return {"text": "abc", "sampling_params": fields}


def chat(**fields: Any) -> dict[str, Any]:
    return {"messages": USER, **fields}


def completion(**fields: Any) -> dict[str, Any]:
    return {"prompt": "abc", **fields}


TYPED: list[tuple[str, dict[str, Any], str]] = [
    # empty and missing prompts
    (GENERATE, {}, "text"),
    (GENERATE, {"text": ""}, "text"),
    (GENERATE, {"text": []}, "text"),
    (GENERATE, {"text": ["a", ""]}, "text"),
    (GENERATE, {"input_ids": []}, "input_ids"),
    (GENERATE, {"input_ids": [[1], []]}, "input_ids"),
    (GENERATE, {"text": "a", "input_ids": [1]}, "text"),
    (COMPLETIONS, {}, "prompt"),
    (COMPLETIONS, completion(prompt=""), "prompt"),
    (COMPLETIONS, completion(prompt=[]), "prompt"),
    (COMPLETIONS, completion(prompt=[[]]), "prompt"),
    (COMPLETIONS, completion(prompt=["a", 1]), "prompt"),
    (COMPLETIONS, completion(prompt=[1, [2]]), "prompt"),
    (COMPLETIONS, completion(prompt=None), "prompt"),
    (CHAT, {}, "messages"),
    (CHAT, chat(messages=[]), "messages"),
    (CHAT, chat(messages="hi"), "messages"),
    (CHAT, chat(messages=[{"role": "user"}]), "messages[0].content"),
    (CHAT, chat(messages=[{"role": "user", "content": 5}]), "messages"),
    (CHAT, chat(messages=[{"role": "alien", "content": "x"}]), "messages"),
    (CHAT, chat(messages=[{"content": "x"}]), "messages"),
    (CHAT, chat(messages=[{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]), "messages[0].content[0]"),
    (CHAT, chat(messages=[{"role": "function", "content": "x", "name": "f"}]), "messages[0].role"),
    (CHAT, chat(messages=[{"role": "user", "content": "x", "tool_calls": [{}]}]), "messages[0].tool_calls"),
    (CHAT, chat(messages=[{"role": "assistant", "tool_calls": [{}]}]), "messages[0].tool_calls[0]"),
    (CHAT, chat(chat_template="{{ messages }}"), "chat_template"),
    (CHAT, chat(reasoning_effort="extreme"), "reasoning_effort"),
    # lengths
    (GENERATE, {"input_ids": [1] * 256}, "input_ids"),
    (GENERATE, {"input_ids": [1] * 250, "sampling_params": {"max_new_tokens": 7}}, "max_new_tokens"),
    (GENERATE, {"input_ids": [1] * 257, "sampling_params": {"max_new_tokens": 0}}, "input_ids"),
    (COMPLETIONS, completion(prompt=[1] * 256), "prompt"),
    (COMPLETIONS, completion(prompt=[1] * 250, max_tokens=7), "max_tokens"),
    (CHAT, chat(max_completion_tokens=300), "max_completion_tokens"),
    (CHAT, chat(max_tokens=5, min_tokens=6), "min_tokens"),
    # ids outside the vocabulary
    (GENERATE, {"input_ids": [259]}, "input_ids"),
    (GENERATE, {"input_ids": [-1]}, "input_ids"),
    (GENERATE, {"input_ids": [HUGE]}, "input_ids"),
    (GENERATE, {"input_ids": [1.5]}, "input_ids"),
    (GENERATE, {"input_ids": [1, [2]]}, "input_ids"),
    (GENERATE, sampling(stop_token_ids=[259]), "stop_token_ids"),
    (GENERATE, sampling(logit_bias={"259": 1.0}), "logit_bias"),
    (GENERATE, sampling(logit_bias={"x": 1.0}), "logit_bias"),
    (GENERATE, {"text": "a", "return_logprob": True, "token_ids_logprob": [259]}, "token_ids_logprob"),
    (COMPLETIONS, completion(prompt=[999], echo=True), "prompt"),
    (COMPLETIONS, completion(prompt=[-5], echo=True), "prompt"),
    (CHAT, chat(logit_bias={"-1": 1}), "logit_bias"),
    # numbers out of range
    (GENERATE, sampling(temperature=-0.1), "temperature"),
    (GENERATE, sampling(top_p=0.0), "top_p"),
    (GENERATE, sampling(top_p=1.1), "top_p"),
    (GENERATE, sampling(top_k=0), "top_k"),
    (GENERATE, sampling(top_k=-2), "top_k"),
    (GENERATE, sampling(min_p=2), "min_p"),
    (GENERATE, sampling(frequency_penalty=3), "frequency_penalty"),
    (GENERATE, sampling(presence_penalty=-3), "presence_penalty"),
    (GENERATE, sampling(repetition_penalty=0), "repetition_penalty"),
    (GENERATE, sampling(max_new_tokens=-1), "max_new_tokens"),
    (GENERATE, sampling(max_new_tokens=HUGE), "max_new_tokens"),
    (GENERATE, sampling(min_new_tokens=-1), "min_new_tokens"),
    (GENERATE, sampling(min_new_tokens=200), "min_new_tokens"),
    (GENERATE, sampling(n=0), "n"),
    (GENERATE, sampling(n=HUGE), "n"),
    (GENERATE, sampling(n=100), "n"),
    (GENERATE, sampling(sampling_seed=HUGE), "sampling_seed"),
    (GENERATE, sampling(sampling_seed=1.5), "sampling_seed"),
    (GENERATE, sampling(stream_interval=0), "stream_interval"),
    (GENERATE, {"text": "a", "priority": HUGE}, "priority"),
    (GENERATE, {"text": "a", "return_logprob": True, "top_logprobs_num": 1000}, "top_logprobs_num"),
    (GENERATE, {"text": "a", "return_logprob": True, "top_logprobs_num": -1}, "top_logprobs_num"),
    (GENERATE, {"text": "a", "return_logprob": True, "logprob_start_len": 9}, "logprob_start_len"),
    (GENERATE, {"text": "a", "return_logprob": True, "logprob_start_len": -2}, "logprob_start_len"),
    (COMPLETIONS, completion(logprobs=-1), "logprobs"),
    (COMPLETIONS, completion(logprobs=1000), "logprobs"),
    (COMPLETIONS, completion(max_tokens=-5), "max_tokens"),
    (COMPLETIONS, completion(seed=HUGE), "seed"),
    (COMPLETIONS, completion(best_of=2), "best_of"),
    (CHAT, chat(top_logprobs=2), "top_logprobs"),
    (CHAT, chat(logprobs=True, top_logprobs=500), "top_logprobs"),
    (CHAT, chat(n=0), "n"),
    (CHAT, chat(temperature=HUGE * HUGE), "temperature") if False else (CHAT, chat(temperature=-1), "temperature"),
    # wrong types
    (GENERATE, {"text": 5}, "text"),
    (GENERATE, {"text": {"a": 1}}, "text"),
    (GENERATE, {"input_ids": "abc"}, "input_ids"),
    (GENERATE, {"text": "a", "stream": "yes"}, "stream"),
    (GENERATE, {"text": "a", "sampling_params": 5}, "sampling_params"),
    (GENERATE, {"text": "a", "sampling_params": []}, "sampling_params"),
    (GENERATE, {"text": ["a", "b"], "sampling_params": [{}]}, "sampling_params"),
    (GENERATE, {"text": ["a", "b"], "sampling_params": [{"n": 1}, {"n": 2}]}, "n"),
    (GENERATE, {"text": ["a", "b"], "rid": ["x"]}, "rid"),
    (GENERATE, {"text": ["a", "b"], "rid": ["x", "x"]}, "rid"),
    (GENERATE, {"text": "a", "rid": ""}, "rid"),
    (GENERATE, {"text": "a", "rid": "x" * 300}, "rid"),
    (GENERATE, {"text": "a", "rid": 5}, "rid"),
    (GENERATE, {"text": ["a", "b"], "token_ids_logprob": [1, [2]], "return_logprob": True}, "token_ids_logprob"),
    (GENERATE, sampling(temperature="hot"), "temperature"),
    (GENERATE, sampling(temperature=True), "temperature"),
    (GENERATE, sampling(stop=5), "stop"),
    (GENERATE, sampling(stop=["a", ""]), "stop"),
    (GENERATE, sampling(stop=["a"] * 33), "stop"),
    (GENERATE, sampling(stop_regex="("), "stop_regex"),
    (GENERATE, sampling(stop_regex="(?=a)"), "stop_regex"),
    (GENERATE, sampling(stop_regex="a" * 300), "stop_regex"),
    (GENERATE, sampling(stop_regex="a*"), "stop_regex"),
    (GENERATE, sampling(stop="a" * 5000), "stop"),
    (GENERATE, sampling(ignore_eos=1), "ignore_eos"),
    (CHAT, chat(stream=1), "stream"),
    (CHAT, chat(stream_options="all"), "stream_options"),
    (CHAT, chat(logprobs=3), "logprobs"),
    (CHAT, chat(rid=["a", "b"]), "rid"),
    (COMPLETIONS, completion(logprobs=True), "logprobs"),
    (COMPLETIONS, completion(stop={"a": 1}), "stop"),
    (COMPLETIONS, completion(rid=["a", "b"]), "rid"),
    # what exists elsewhere and cannot be honoured
    (GENERATE, {"text": "a", "image_data": "x.png"}, "image_data"),
    (GENERATE, {"text": "a", "lora_path": "x"}, "lora_path"),
    (GENERATE, sampling(json_schema="{"), "json_schema"),
    (GENERATE, sampling(regex="a("), "regex"),
    (CHAT, chat(tools=[{"type": "function"}]), "tools"),
    (CHAT, chat(tool_choice="required"), "tool_choice"),
    (CHAT, chat(response_format={"type": "json_schema"}), "response_format"),
    (CHAT, chat(response_format="json"), "response_format"),
    (CHAT, chat(chat_template="{{ x }}"), "chat_template"),
    (CHAT, chat(chat_template_kwargs=5), "chat_template_kwargs"),
    (CHAT, chat(chat_template_kwargs={"messages": []}), "chat_template_kwargs"),
    (CHAT, chat(modalities=["audio"]), "modalities"),
    (COMPLETIONS, completion(suffix="x"), "suffix"),
    (COMPLETIONS, completion(regex="(a"), "regex"),
    # the other routes
    ("/tokenize", {}, "prompt"),
    ("/tokenize", {"prompt": 5}, "prompt"),
    ("/detokenize", {}, "tokens"),
    ("/detokenize", {"tokens": [999]}, "tokens"),
    ("/detokenize", {"tokens": [-1]}, "tokens"),
    ("/detokenize", {"tokens": [1, [2]]}, "tokens"),
    ("/abort_request", {}, "rid"),
    ("/abort_request", {"rid": 5}, "rid"),
]  # fmt: skip


def check(response: Any, status: int = 400) -> dict[str, Any]:
    assert response.status_code == status, response.text
    error = response.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["message"] and len(error["message"]) < 600
    assert response.headers["x-request-id"]
    return error


@pytest.mark.parametrize(("path", "body", "field"), TYPED, ids=lambda value: json.dumps(value)[:70])
def test_the_field_is_named(path: str, body: dict[str, Any], field: str) -> None:
    house = make_house()
    error = check(ask(house, "POST", path, json=body))
    named = error["param"] or error["message"]
    assert named.replace("$.", "").removeprefix("sampling_params.").startswith(field), error
    assert field in error["message"], error
    assert house.frontend.num_open == 0
    assert ask(house, "POST", "/generate", json=sampling(max_new_tokens=2)).json()["text"] == "He"


RAW: list[tuple[bytes, str]] = [
    (b"", "JSON"),
    (b"{", "JSON"),
    (b"nonsense", "JSON"),
    (b"[]", "object"),
    (b"5", "object"),
    (b'{"text": "a"} x', "JSON"),
    (b'{"text": "\xff"}', "UTF-8"),
    (b'{"text": "\\ud800"}', "surrogate"),
    (b'{"text": "\\ud800x"}', "JSON"),
    (b'{"text": "\\udc00\\ud800"}', "JSON"),
    (b'{"text": "a", "sampling_params": {"temperature": NaN}}', "temperature"),
    (b'{"text": "a", "sampling_params": {"temperature": -Infinity}}', "temperature"),
    (b'{"text": "a", "sampling_params": {"temperature": 1e999}}', "temperature"),
    (b'{"text": "a", "sampling_params": {"max_new_tokens": ' + b"9" * 5000 + b"}}", "max_new_tokens"),
    (b'{"text": "a", "sampling_params": {"min_p": ' + b"9" * 5000 + b"}}", "min_p"),
    (b'{"text": ' + b"[" * 100_000 + b"]" * 100_000 + b"}", "text"),
    (b'{"unknown": ' + b"[" * 100_000 + b"]" * 100_000 + b"}", "nested"),
    (b'{"image_data": ' + b'{"a":' * 100_000 + b"1" + b"}" * 100_000 + b"}", "nested"),
    (b'{"text": "a", "input_ids": [1' + b",259" * 1000 + b"]}", "text"),
]


@pytest.mark.parametrize("path", [GENERATE, CHAT, COMPLETIONS])
@pytest.mark.parametrize(("data", "word"), RAW, ids=lambda value: repr(value[:40]))
def test_bodies_that_are_not_what_they_should_be(path: str, data: bytes, word: str) -> None:
    house = make_house()
    error = check(ask(house, "POST", path, content=data))
    if path == GENERATE:
        assert word in error["message"], error
    assert ask(house, "GET", "/health").status_code == 200


def test_a_body_that_is_too_large_is_refused_before_it_is_held() -> None:
    house = make_house(max_body_bytes=1000)
    assert check(ask(house, "POST", GENERATE, json={"text": "a" * 2000}), 413)["code"] == "body_too_large"

    async def chunks() -> Any:
        for _ in range(20):
            yield b"x" * 100

    assert check(ask(house, "POST", GENERATE, content=chunks()), 413)["code"] == "body_too_large"


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
def test_an_unknown_model_is_a_404(path: str) -> None:
    error = check(ask(make_house(), "POST", path, json={"model": "nope", "prompt": "a", "messages": USER}), 404)
    assert error["param"] == "model" and "nope" in error["message"] and "fake" in error["message"]


def test_unknown_routes_and_methods_are_json_too() -> None:
    house = make_house()
    assert check(ask(house, "GET", "/nope"), 404)["code"] == "not_found"
    assert check(ask(house, "GET", "/health/"), 404)["code"] == "not_found"
    response = ask(house, "GET", "/v1/chat/completions")
    assert check(response, 405)["code"] == "method_not_allowed" and response.headers["allow"] == "POST"


def test_streams_are_refused_before_the_first_byte() -> None:
    for path, body in ((GENERATE, {"text": ""}), (CHAT, chat(temperature=-1)), (COMPLETIONS, completion(n=0))):
        response = ask(make_house(), "POST", path, json={**body, "stream": True})
        check(response)
        assert response.headers["content-type"] == "application/json"


def test_unknown_fields_are_ignored() -> None:
    house = make_house()
    assert ask(house, "POST", GENERATE, json={**sampling(max_new_tokens=1, novelty=1), "novelty": {"a": [1]}}).status_code == 200
    assert ask(house, "POST", CHAT, json=chat(max_tokens=1, novelty=[{}])).status_code == 200


def test_an_unexpected_failure_is_a_500_that_says_nothing() -> None:
    house = make_house()

    async def explode(pieces: Any, add_special: bool) -> list[int]:
        raise RuntimeError("secret at 0x7f00")

    house.backend.tokenize = explode  # type: ignore[method-assign]
    error = check(ask(house, "POST", GENERATE, json={"text": "a"}), 500)
    assert "secret" not in error["message"] and "0x7f" not in error["message"]
    assert ask(house, "POST", GENERATE, json={"input_ids": [1], "sampling_params": {"max_new_tokens": 1}}).status_code == 200
