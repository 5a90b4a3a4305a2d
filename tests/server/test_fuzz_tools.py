"""Bodies about tools with anything anywhere: never a 5xx, never a request left open. A long run draws a new seed."""

from __future__ import annotations

import asyncio
import json
import os
import random
from typing import Any

import pytest
from serverkit import client_of
from test_tool_calls import CALLS, PARAMETERS, THINKING, speaking

JUNK: list[Any] = [
    None, 0, -1, 1e300, True, "", "x", "\ud800", [], {}, [1], ["a"], {"type": "function"}, {"name": "f"},
    {"function": {"name": "f"}}, "required", {"type": "any"}, {"$ref": "#/$defs/X"}, {"type": "tool", "name": "f"},
]  # fmt: skip
KEYS = (
    "type", "role", "content", "name", "id", "function", "arguments", "input", "call_id", "output", "text", "parameters",
    "strict", "properties", "$defs", "$ref", "tool_calls", "tool_call_id", "summary", "thinking", "format", "schema", "effort",
)  # fmt: skip
FUNCTION = {"name": "f", "parameters": {**PARAMETERS, "$defs": {"X": {"type": "string"}}}, "strict": False}
CALL = {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
USER = {"role": "user", "content": "hi"}
BLOCKS = [{"type": "tool_use", "id": "1", "name": "f", "input": {"a": 1}}, {"type": "thinking", "thinking": "hm"}]
RESULT = {"type": "tool_result", "tool_use_id": "1", "content": [{"type": "text", "text": "x"}]}
BODIES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {
        "messages": [USER, {"role": "assistant", "tool_calls": [CALL]}, {"role": "tool", "tool_call_id": "1", "content": "x"}],
        "tools": [{"type": "function", "function": FUNCTION}], "tool_choice": "auto", "parallel_tool_calls": True,
        "reasoning_effort": "low", "stream": False, "chat_template_kwargs": {"enable_thinking": True}, "max_tokens": 9,
    },
    "/v1/messages": {
        "messages": [USER, {"role": "assistant", "content": BLOCKS}, {"role": "user", "content": [RESULT]}], "max_tokens": 9,
        "tools": [{"name": "f", "input_schema": PARAMETERS}], "tool_choice": {"type": "auto"}, "thinking": {"type": "enabled"},
    },
    "/v1/responses": {
        "input": [USER, {"type": "function_call", "call_id": "1", "name": "f", "arguments": "{}"},
                  {"type": "function_call_output", "call_id": "1", "output": "x"}, {"type": "reasoning", "summary": []}],
        "tools": [{"type": "function", **FUNCTION}], "tool_choice": "auto", "text": {"format": {"type": "text"}},
        "reasoning": {"effort": "low"}, "max_output_tokens": 9, "stream": False, "background": False, "metadata": {},
    },
    "/api/chat": {"messages": [USER], "tools": [{"type": "function", "function": FUNCTION}], "think": True, "stream": False},
    "/parse_function_call": {"text": CALLS, "tools": [{"type": "function", "function": FUNCTION}], "tool_call_parser": "hermes"},
    "/separate_reasoning": {"text": "<think>x", "reasoning_parser": "qwen3"},
}  # fmt: skip


def junk(draw: random.Random, depth: int = 0) -> Any:
    kind = draw.random()
    if kind < 0.5 or depth > 2:
        return draw.choice(JUNK)
    if kind < 0.55:
        nested: Any = 1
        for _ in range(draw.choice((70, 300, 900))):
            nested = [nested] if kind < 0.52 else {"a": nested}
        return nested
    if kind < 0.75:
        return [junk(draw, depth + 1) for _ in range(draw.randint(0, 3))]
    return {draw.choice(KEYS): junk(draw, depth + 1) for _ in range(draw.randint(0, 3))}


def spoilt(draw: random.Random, value: Any, share: float) -> Any:
    """`value` with junk in some places."""
    if draw.random() < share:
        return junk(draw)
    if isinstance(value, dict):
        return {key: spoilt(draw, item, share) for key, item in value.items() if draw.random() > share}
    return [spoilt(draw, item, share) for item in value] if isinstance(value, list) else value


@pytest.mark.parametrize("path", BODIES)
def test_nothing_but_answers_and_refusals(path: str) -> None:
    is_long = bool(os.environ.get("SAPWOOD_LONG_TESTS"))
    seed = random.randrange(2**32) if is_long else 7
    draw = random.Random(seed)

    async def run() -> int:
        house, num_answered = speaking(CALLS, THINKING), 0
        async with client_of(house) as client:
            for _ in range(3000 if is_long else 60):
                data = json.dumps(spoilt(draw, BODIES[path], draw.choice((0.01, 0.03, 0.1)))).encode()
                response = await client.post(path, content=data)
                assert response.status_code < 500 and "server failed" not in response.text, (seed, data)
                num_answered += response.status_code == 200
            await house.frontend.wait_idle(5)
        assert house.frontend.num_open == 0
        return num_answered

    assert asyncio.run(run()) > 5
