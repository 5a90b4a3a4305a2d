"""Ollama's client against a real model: a call of a tool and its result, whole and streamed."""

from __future__ import annotations

from typing import Any

import ollama
import pytest
from asking import CALLED, MAX_TOKENS, MODEL, TOOL, WEATHER
from serving import RunningServer

pytestmark = [pytest.mark.real_model, pytest.mark.timeout(300)]


def test_a_call_and_its_result(coder_server: RunningServer) -> None:
    client = ollama.Client(host=coder_server.url)
    options = {"temperature": 0, "num_predict": MAX_TOKENS}
    call: dict[str, Any] = {"model": MODEL, "messages": WEATHER, "tools": [TOOL], "options": options}
    whole = client.chat(**call)
    parts = list(client.chat(**call, stream=True))
    for message in (whole.message, next(part.message for part in parts if part.message.tool_calls)):
        [asked] = message.tool_calls or []
        assert (asked.function.name, dict(asked.function.arguments)) == CALLED
    assert parts[-1].done_reason == whole.done_reason == "stop" and parts[-1].eval_count == whole.eval_count
    assert "tools" in (client.show(MODEL).capabilities or [])
    turns = [*WEATHER, whole.message, {"role": "tool", "tool_name": "get_weather", "content": "sunny, 24 degrees"}]
    assert client.chat(model=MODEL, messages=turns, options=options).message.content
