"""The official Anthropic client against a real model: words, a call of a tool and its result, whole and streamed."""

from __future__ import annotations

from typing import Any

import anthropic
import pytest
from asking import CALLED, DESCRIPTION, MAX_TOKENS, MODEL, PARAMETERS, WEATHER
from serving import RunningServer

pytestmark = [pytest.mark.real_model, pytest.mark.timeout(300)]
TOOL: Any = {"name": "get_weather", "description": DESCRIPTION, "input_schema": PARAMETERS}
CALL: dict[str, Any] = {
    "model": MODEL, "messages": WEATHER, "tools": [TOOL], "max_tokens": MAX_TOKENS, "extra_body": {"temperature": 0},
}  # fmt: skip


def test_a_call_and_its_result(coder_server: RunningServer) -> None:
    client = anthropic.Anthropic(base_url=coder_server.url, api_key="none", max_retries=0)
    whole = client.messages.create(**CALL)
    with client.messages.stream(**CALL) as stream:
        partial = [event.partial_json for event in stream if event.type == "input_json"]
        streamed = stream.get_final_message()
    assert len(partial) > 1, "arguments come in parts"
    for message in (whole, streamed):
        [block] = message.content
        assert block.type == "tool_use" and (block.name, block.input) == CALLED
        assert message.stop_reason == "tool_use"
    use = whole.content[0]
    assert use.type == "tool_use"
    result = {"type": "tool_result", "tool_use_id": use.id, "content": "sunny, 24 degrees"}
    turns: list[Any] = [*WEATHER, {"role": "assistant", "content": whole.content}, {"role": "user", "content": [result]}]
    call = {**CALL, "messages": turns}
    del call["tools"]
    answer = client.messages.create(**call)
    assert answer.content[0].type == "text" and answer.content[0].text and answer.stop_reason in ("end_turn", "max_tokens")
