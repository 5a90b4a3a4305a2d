"""Every dialect's official client against a served model: the same words from each, whole and streamed, and code filled in."""

from __future__ import annotations

from typing import Any

import anthropic
import ollama
import openai
import pytest
from serving import RunningServer

pytestmark = [pytest.mark.real_model, pytest.mark.timeout(600)]
MODEL = "qwen2.5-coder-0.5b-instruct"
MESSAGES: list[Any] = [{"role": "user", "content": "Name three colours, separated by commas."}]


@pytest.fixture(scope="module")
def server(coder_server: RunningServer) -> RunningServer:
    return coder_server


@pytest.fixture(scope="module")
def words(server: RunningServer) -> str:
    """What the OpenAI route says."""
    client = openai.OpenAI(base_url=f"{server.url}/v1", api_key="none")
    answer = client.chat.completions.create(model=MODEL, messages=MESSAGES, max_tokens=24, temperature=0)
    assert answer.choices[0].message.content
    return answer.choices[0].message.content


def test_anthropics_client_hears_the_same_words(server: RunningServer, words: str) -> None:
    client = anthropic.Anthropic(base_url=server.url, api_key="none")
    call: dict[str, Any] = {"model": MODEL, "messages": MESSAGES, "max_tokens": 24, "extra_body": {"temperature": 0}}
    message = client.messages.create(**call)
    assert message.content[0].text == words
    with client.messages.stream(**call) as stream:
        assert "".join(stream.text_stream) == words
        final = stream.get_final_message()
    assert final.stop_reason == message.stop_reason and final.usage.output_tokens == message.usage.output_tokens
    counted = client.messages.count_tokens(model=MODEL, messages=MESSAGES).input_tokens
    for usage in (message.usage, final.usage):
        assert usage.input_tokens + (usage.cache_read_input_tokens or 0) == counted
    assert final.usage.cache_read_input_tokens


def test_ollamas_client_hears_the_same_words(server: RunningServer, words: str) -> None:
    client = ollama.Client(host=server.url)
    options = {"temperature": 0, "num_predict": 24}
    assert client.chat(model=MODEL, messages=MESSAGES, options=options).message.content == words
    parts = list(client.chat(model=MODEL, messages=MESSAGES, options=options, stream=True))
    assert "".join(part.message.content or "" for part in parts) == words
    assert client.generate(model=MODEL, prompt=MESSAGES[0]["content"], options=options).response == words
    [listed] = client.list().models
    assert listed.size and listed.details and listed.details.format == "gguf"
    assert client.show(listed.model or "").capabilities == ["completion", "insert", "tools"]


def test_code_is_filled_in(server: RunningServer) -> None:
    before, after = "def add(a, b):\n    ", "\n\nprint(add(1, 2))\n"
    client = openai.OpenAI(base_url=f"{server.url}/v1", api_key="none")
    answer = client.completions.create(model=MODEL, prompt=before, suffix=after, max_tokens=24, temperature=0, stop="\n")
    assert answer.choices[0].text == "return a + b" and answer.choices[0].finish_reason == "stop"
    options = {"temperature": 0, "num_predict": 24, "stop": ["\n"]}
    filled = ollama.Client(host=server.url).generate(model=MODEL, prompt=before, suffix=after, options=options)
    assert filled.response == answer.choices[0].text and filled.done_reason == "stop"
