"""The requests of evaluation and load tools, as these tools send and read them, against the real scheduler over HTTP.

Shapes: lm-eval (local-completions, local-chat-completions, remote tokenizer), guidellm, vLLM's and SGLang's serving benchmarks,
aiperf. `benchmarks/evaluate.py` runs lm-eval itself.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from sapwood.testing.scripted_server import ScriptedServer

ANSWER = "some words of an answer that goes on"


@pytest.fixture(scope="module")
def running() -> Iterator[ScriptedServer]:
    with ScriptedServer() as server:
        yield server


@pytest.fixture
def client(running: ScriptedServer) -> Iterator[httpx.Client]:
    running.script.reset()
    running.script.default = ANSWER
    with httpx.Client(base_url=running.url, timeout=30) as http:
        yield http


def lines_of(client: httpx.Client, path: str, body: dict[str, Any], **headers: str) -> list[str]:
    """The lines of a stream that are not empty."""
    with client.stream("POST", path, json=body, headers=headers) as response:
        assert response.status_code == 200, response.read()
        return [line for line in response.iter_lines() if line]


def chunks_of(lines: list[str]) -> list[dict[str, Any]]:
    """Strictly: each line is one JSON object after `data: `, the last one says DONE."""
    assert lines[-1] == "data: [DONE]"
    return [json.loads(line.removeprefix("data: ")) for line in lines[:-1]]


# ------------------------------------------------------------------------------------------------------------- lm-eval
def scored(client: httpx.Client, prompts: list[list[int]]) -> list[dict[str, Any]]:
    body = {"model": "null", "prompt": prompts, "temperature": 0, "max_tokens": 1, "logprobs": 1, "seed": 1234, "echo": True}
    choices = client.post("/v1/completions", json=body).json()["choices"]
    return [choice["logprobs"] for choice in sorted(choices, key=lambda choice: choice["index"])]


def test_lm_evals_log_likelihoods(client: httpx.Client) -> None:
    """One entry for each id and one more; no id is added, merged or dropped; the chosen one is in its own dictionary."""
    prompts = [list(b"a context and a continuation"), list(b"xx"), [65, 65, 65]]
    for ids, logprobs in zip(prompts, scored(client, prompts), strict=True):
        assert len(logprobs["token_logprobs"]) == len(logprobs["top_logprobs"]) == len(ids) + 1
        assert logprobs["token_logprobs"][0] is None
        for value, top in zip(logprobs["token_logprobs"][1:-1], logprobs["top_logprobs"][1:-1], strict=True):
            assert value == max(top.values())


def test_lm_evals_remote_tokenizer(client: httpx.Client) -> None:
    facts = client.get("/tokenizer_info").json()
    assert facts["eos_token"] and "chat_template" in facts
    ids = client.post("/tokenize", json={"prompt": "hello", "add_special_tokens": False}).json()["tokens"]
    assert ids == list(b"hello")
    assert client.post("/detokenize", json={"tokens": ids}).json()["prompt"] == "hello"


def test_lm_evals_generation(client: httpx.Client) -> None:
    stops = ["\n", "\n\n", "Question:", "zzz", "answer"]
    body = {"prompt": ["one", "two"], "model": "null", "max_tokens": 32, "temperature": 0, "stop": stops, "seed": 1234}
    choices = client.post("/v1/completions", json=body).json()["choices"]
    assert [choice["text"] for choice in sorted(choices, key=lambda choice: choice["index"])] == ["some words of an "] * 2
    chat = {"messages": [{"role": "user", "content": "hi", "type": "text"}], "model": "null", "max_tokens": 64, "seed": 1}
    reply = client.post("/v1/chat/completions", json={**chat, "temperature": 0, "stop": stops[:2]}).json()
    assert reply["choices"][0]["message"]["content"] == ANSWER


# ---------------------------------------------------------------------------------------------------------- load tools
def test_guidellm(client: httpx.Client) -> None:
    """Health, the first model, exact lengths, usage in every chunk and at the end."""
    assert client.get("/health").status_code == 200
    model = client.get("/v1/models").json()["data"][0]["id"]
    options = {"include_usage": True, "continuous_usage_stats": True}
    shared = {"model": model, "stream": True, "stream_options": options, "ignore_eos": True, "stop": None}
    for path, body in (
        ("/v1/completions", {"prompt": "abc", "max_tokens": 50}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "abc"}], "max_completion_tokens": 50}),
    ):
        chunks = chunks_of(lines_of(client, path, {**body, **shared}))
        assert all(chunk["usage"]["prompt_tokens"] > 0 for chunk in chunks)
        assert chunks[-1]["choices"] == [] and chunks[-1]["usage"]["completion_tokens"] == 50
        assert "cached_tokens" in chunks[-1]["usage"]["prompt_tokens_details"]
        growing = [chunk["usage"]["completion_tokens"] for chunk in chunks]
        assert growing == sorted(growing)


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
def test_vllms_benchmark(client: httpx.Client, path: str) -> None:
    """The first chunk with choices carries the first token, so that time to first token is true; one token per chunk."""
    prompt = {"prompt": "abc"} if path == "/v1/completions" else {"messages": [{"role": "user", "content": "abc"}]}
    length = {"max_tokens": 20} if path == "/v1/completions" else {"max_completion_tokens": 20}
    body = {**prompt, **length, "model": "null", "temperature": 0.0, "repetition_penalty": 1.0, "stream": True}
    body |= {"logprobs": None, "ignore_eos": True, "stream_options": {"include_usage": True}}
    if path != "/v1/completions":
        del body["logprobs"]
    chunks = chunks_of(lines_of(client, path, body, **{"x-request-id": "bench-1"}))
    texts = [chunk["choices"][0].get("text") or chunk["choices"][0].get("delta", {}).get("content") for chunk in chunks[:-1]]
    assert texts[0], "the first chunk with choices has text"
    assert sum(bool(text) for text in texts) == 20
    assert chunks[-1]["choices"] == [] and chunks[-1]["usage"]["completion_tokens"] == 20


def test_sglangs_benchmark(client: httpx.Client) -> None:
    """It reads choices[0] of every chunk, so that a chunk that was not asked for would break it; and the native route."""
    body = {
        "model": "null",
        "messages": [{"role": "user", "content": "abc"}],
        "temperature": 0.0,
        "max_tokens": 12,
        "stream": True,
    }
    chunks = chunks_of(lines_of(client, "/v1/chat/completions", {**body, "ignore_eos": True}))
    assert all(chunk["choices"] for chunk in chunks)
    text = "".join(chunk["choices"][0]["delta"].get("content") or "" for chunk in chunks)
    assert text == ANSWER[:12]
    native = {"text": "abc", "sampling_params": {"temperature": 0.0, "max_new_tokens": 12, "ignore_eos": True}, "stream": True}
    extra = {"lora_path": None, "return_logprob": False, "logprob_start_len": -1, "image_data": None}
    events = chunks_of(lines_of(client, "/generate", {**native, **extra}))
    assert events[-1]["text"] == ANSWER[:12] and events[-1]["meta_info"]["completion_tokens"] == 12
    assert [event["meta_info"]["completion_tokens"] for event in events] == list(range(1, 13))
    assert client.post("/flush_cache").status_code == 200
    assert client.get("/get_server_info").json()["internal_states"]


def test_aiperf(client: httpx.Client) -> None:
    body = {"model": "null", "messages": [{"role": "user", "content": [{"type": "text", "text": "abc"}]}], "stream": True}
    body |= {"stream_options": {"include_usage": True}, "max_completion_tokens": 9, "ignore_eos": True, "min_tokens": 9}
    chunks = chunks_of(lines_of(client, "/v1/chat/completions", body))
    assert chunks[-1]["usage"]["completion_tokens"] == 9
    with client.stream("POST", "/v1/chat/completions", json={**body, "max_completion_tokens": 4000, "min_tokens": 0}) as response:
        next(response.iter_lines())  # it cancels some requests in the middle
    assert client.post("/v1/completions", json={"model": "null", "prompt": "a", "max_tokens": 1}).status_code == 200
