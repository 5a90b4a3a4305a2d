"""The official OpenAI client against a real model: chat, tools, completions and responses, whole and streamed."""

from __future__ import annotations

import json
from typing import Any

import openai
import pytest
from asking import CALLED, COLOURS, DESCRIPTION, MAX_TOKENS, MODEL, PARAMETERS, TOOL, WEATHER
from serving import RunningServer

pytestmark = [pytest.mark.real_model, pytest.mark.timeout(300)]
CALL: dict[str, Any] = {"model": MODEL, "messages": WEATHER, "tools": [TOOL], "temperature": 0, "max_tokens": MAX_TOKENS}


@pytest.fixture(scope="module")
def client(coder_server: RunningServer) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{coder_server.url}/v1", api_key="none", max_retries=0)


def test_words(client: openai.OpenAI) -> None:
    call: dict[str, Any] = {"model": MODEL, "messages": COLOURS, "max_tokens": 24, "temperature": 0}
    whole = client.chat.completions.create(**call)
    chunks = list(client.chat.completions.create(**call, stream=True, stream_options={"include_usage": True}))
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text == whole.choices[0].message.content and whole.choices[0].finish_reason in ("stop", "length")
    assert chunks[-1].usage and whole.usage and chunks[-1].usage.completion_tokens == whole.usage.completion_tokens
    with_logprobs = client.chat.completions.create(**call, logprobs=True, top_logprobs=2)
    logprobs = with_logprobs.choices[0].logprobs
    assert logprobs and logprobs.content and len(logprobs.content) == whole.usage.completion_tokens


def test_a_call(client: openai.OpenAI) -> None:
    whole = client.chat.completions.create(**CALL).choices[0]
    with client.chat.completions.stream(**CALL) as stream:
        streamed = stream.until_done().get_final_completion().choices[0]
    for choice in (whole, streamed):
        [call] = choice.message.tool_calls or []
        assert call.type == "function" and (call.function.name, json.loads(call.function.arguments)) == CALLED
        assert choice.finish_reason == "tool_calls" and choice.message.content is None


def test_the_result_of_a_call(client: openai.OpenAI) -> None:
    asked = client.chat.completions.create(**CALL).choices[0].message
    [call] = asked.tool_calls or []
    result = {"role": "tool", "tool_call_id": call.id, "content": "sunny, 24 degrees"}
    messages: list[Any] = [*WEATHER, asked, result]
    answer = client.chat.completions.create(model=MODEL, messages=messages, temperature=0, max_tokens=MAX_TOKENS)
    assert answer.choices[0].message.content and answer.choices[0].finish_reason in ("stop", "length")


def test_responses(client: openai.OpenAI) -> None:
    tool: Any = {"type": "function", "name": "get_weather", "description": DESCRIPTION, "parameters": PARAMETERS, "strict": False}
    call: dict[str, Any] = {"model": MODEL, "temperature": 0, "max_output_tokens": MAX_TOKENS, "tools": [tool]}
    whole = client.responses.create(**call, input=WEATHER)
    with client.responses.stream(**call, input=WEATHER) as stream:
        for _ in stream:
            pass
        streamed = stream.get_final_response()
    for response in (whole, streamed):
        [item] = response.output
        assert item.type == "function_call" and (item.name, json.loads(item.arguments)) == CALLED
        assert response.status == "completed"
    item = whole.output[0]
    assert item.type == "function_call"
    result: Any = [{"type": "function_call_output", "call_id": item.call_id, "output": "sunny, 24 degrees"}]
    answer = client.responses.create(
        model=MODEL, input=result, previous_response_id=whole.id, temperature=0, max_output_tokens=MAX_TOKENS
    )
    assert (
        answer.output_text and answer.usage and answer.usage.input_tokens > (whole.usage.input_tokens if whole.usage else 0) - 200
    )
