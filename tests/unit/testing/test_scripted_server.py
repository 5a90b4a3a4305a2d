"""The scripted server: what a test lays out comes back through every client, whole and streamed, with tools and counts."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import anthropic
import httpx
import ollama
import openai
import pytest

from sapwood.testing.script import DEFAULT_ANSWER, Script
from sapwood.testing.scripted_server import ScriptedServer

TOOLS: list[Any] = [{"type": "function", "function": {"name": "weather", "parameters": {"type": "object", "properties": {}}}}]


@pytest.fixture(scope="module")
def running() -> Iterator[ScriptedServer]:
    with ScriptedServer() as server:
        yield server


@pytest.fixture
def server(running: ScriptedServer) -> ScriptedServer:
    running.script.reset()
    return running


def chat(server: ScriptedServer, text: str, **more: Any) -> Any:
    client = openai.OpenAI(base_url=server.base_url, api_key="none")
    return client.chat.completions.create(model=server.model, messages=[{"role": "user", "content": text}], **more)


def test_rules_are_tried_in_their_order() -> None:
    script = Script()
    script.when("sun", "warm")
    script.when("sun.*rain", "a rainbow")
    script.say("first")
    assert [script.answer_to("sun and rain") for _ in range(2)] == ["first", "a rainbow"]
    assert script.answer_to("sun") == "warm" and script.answer_to("moon") == DEFAULT_ANSWER
    assert script.prompts == ["sun and rain", "sun and rain", "sun", "moon"]
    script.reset()
    assert script.prompts == [] and script.answer_to("sun") == DEFAULT_ANSWER


def test_every_dialects_client_hears_the_script(server: ScriptedServer) -> None:
    server.script.default = "Blåbær 🌲 it is."
    reply = chat(server, "Which berry?")
    assert reply.choices[0].message.content == server.script.default and reply.choices[0].finish_reason == "stop"
    assert reply.usage.completion_tokens == len(server.script.default.encode()) + 1
    parts = [chunk.choices[0].delta.content or "" for chunk in chat(server, "Which berry?", stream=True)]
    assert "".join(parts) == server.script.default and len(parts) > 5
    claude = anthropic.Anthropic(base_url=server.url, api_key="none")
    message = claude.messages.create(model="null", max_tokens=99, messages=[{"role": "user", "content": "Which berry?"}])
    assert message.content[0].text == server.script.default
    assert ollama.Client(server.url).generate(model="null", prompt="Which berry?").response == server.script.default
    assert "Which berry?" in server.script.prompts[0] and len(server.script.prompts) == 4


def test_limits_stops_samples_and_the_cache_are_real(server: ScriptedServer) -> None:
    server.script.default = "one two three"
    assert chat(server, "count", max_tokens=3).choices[0].finish_reason == "length"
    stopped = chat(server, "count", stop=[" three"]).choices[0]
    assert (stopped.message.content, stopped.finish_reason) == ("one two", "stop")
    server.script.say("a", "b", "c")
    assert sorted(choice.message.content for choice in chat(server, "count", n=3).choices) == ["a", "b", "c"]
    assert chat(server, "count").usage.prompt_tokens_details.cached_tokens > 0
    with pytest.raises(openai.BadRequestError, match="temperature"):
        chat(server, "count", temperature=-1)


def test_tool_calls(server: ScriptedServer) -> None:
    server.script.say(Script.call("weather", city="Oslo") + "\n" + Script.call("weather", city="Rome"))
    calls = chat(server, "Compare the weather", tools=TOOLS).choices[0].message.tool_calls
    assert [json.loads(call.function.arguments)["city"] for call in calls] == ["Oslo", "Rome"]
    assert "weather" in server.script.prompts[-1]


def test_logprobs_and_echo(server: ScriptedServer) -> None:
    server.script.default = "xy"
    body = {"prompt": "ab", "max_tokens": 2, "logprobs": 2, "echo": True}
    choice = httpx.post(f"{server.base_url}/completions", json=body).json()["choices"][0]
    assert choice["text"] == "abxy" and choice["logprobs"]["tokens"] == list("abxy")
    assert choice["logprobs"]["token_logprobs"] == [None, -1.0, -0.1, -0.1]


def test_a_crowd_gets_its_own_answers(server: ScriptedServer) -> None:
    for number in range(40):
        server.script.when(f"number {number}[.]", f"answer {number}")
    with ThreadPoolExecutor(16) as pool:
        texts = pool.map(lambda number: chat(server, f"number {number}.").choices[0].message.content, range(40))
    assert list(texts) == [f"answer {number}" for number in range(40)]


def test_options_of_its_own() -> None:
    with ScriptedServer(api_key="secret", served_model_name="gpt-x") as server:
        assert httpx.get(f"{server.base_url}/models").status_code == 401
        models = httpx.get(f"{server.base_url}/models", headers={"authorization": "Bearer secret"}).json()
        assert models["data"][0]["id"] == server.model == "gpt-x"
    with pytest.raises(httpx.ConnectError):
        httpx.get(server.url)
