"""LiteLLM against a real model: words and a call of a tool, whole and streamed."""

from __future__ import annotations

import json
import os
from typing import Any

import pytest
from asking import CALLED, COLOURS, MAX_TOKENS, MODEL, TOOL, WEATHER
from serving import RunningServer

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # read when it is imported; else it asks the network for prices
import litellm

pytestmark = [pytest.mark.real_model, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def call(coder_server: RunningServer) -> dict[str, Any]:
    url = f"{coder_server.url}/v1"
    return {"model": f"openai/{MODEL}", "api_base": url, "api_key": "none", "temperature": 0, "max_tokens": MAX_TOKENS}


def test_words(call: dict[str, Any]) -> None:
    whole = litellm.completion(**call, messages=COLOURS)
    chunks = list(litellm.completion(**call, messages=COLOURS, stream=True))
    assert whole.choices[0].message.content
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == whole.choices[0].message.content
    assert chunks[-1].choices[0].finish_reason == whole.choices[0].finish_reason


def test_a_call(call: dict[str, Any]) -> None:
    whole = litellm.completion(**call, messages=WEATHER, tools=[TOOL])
    chunks = list(litellm.completion(**call, messages=WEATHER, tools=[TOOL], stream=True))
    streamed = litellm.stream_chunk_builder(chunks, messages=WEATHER)
    for answer in (whole, streamed):
        [asked] = answer.choices[0].message.tool_calls
        assert (asked.function.name, json.loads(asked.function.arguments)) == CALLED
        assert answer.choices[0].finish_reason == "tool_calls"
