"""The weather and calendar agent on a real model, and forced calls: bound by a grammar, the same whole and streamed."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import anthropic
import openai
import pytest
from asking import DESCRIPTION, MODEL, PARAMETERS, TOOL, WEATHER
from serving import RunningServer

pytestmark = [pytest.mark.real_model, pytest.mark.timeout(300)]
EXAMPLE = Path(__file__).parents[2] / "examples" / "weather_agent.py"
CLOSED = {**PARAMETERS, "additionalProperties": False}
"""With further properties allowed, a small model goes on inventing them until the length ends it."""
FORCED: dict[str, Any] = {"type": "function", "function": {"name": "get_weather"}}


def test_the_agent_calls_its_tools_at_once(coder_server: RunningServer) -> None:
    command = [sys.executable, str(EXAMPLE), f"{coder_server.url}/v1"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    calls = [line for line in done.stdout.splitlines() if line.startswith("-> ")]
    assert len(calls) >= 2 and any("get_weather" in call for call in calls), done.stdout
    assert f"{len(calls)} calls; calendar:" in done.stdout


@pytest.mark.parametrize("choice", ["required", FORCED], ids=["required", "named"])
def test_forced_calls(coder_server: RunningServer, choice: Any) -> None:
    client = openai.OpenAI(base_url=f"{coder_server.url}/v1", api_key="none", max_retries=0)
    call: dict[str, Any] = {"model": MODEL, "messages": [{"role": "user", "content": "Say hello."}], "tools": [TOOL]}
    call |= {"tool_choice": choice, "temperature": 0, "max_tokens": 200, "parallel_tool_calls": False}
    whole = client.chat.completions.create(**call).choices[0]
    with client.chat.completions.stream(**call) as stream:
        streamed = stream.until_done().get_final_completion().choices[0]
    asked = [[(c.function.name, c.function.arguments) for c in answer.message.tool_calls or []] for answer in (whole, streamed)]
    assert asked[0] == asked[1] and [name for name, _ in asked[0]] == ["get_weather"]
    assert set(json.loads(asked[0][0][1])) >= {"city", "day"} and whole.finish_reason == streamed.finish_reason == "tool_calls"


def test_forced_calls_of_other_routes(coder_server: RunningServer) -> None:
    tool: Any = {"name": "get_weather", "description": DESCRIPTION, "input_schema": PARAMETERS}
    claude = anthropic.Anthropic(base_url=coder_server.url, api_key="none", max_retries=0)
    call: dict[str, Any] = {
        "model": MODEL,
        "messages": WEATHER,
        "tools": [tool],
        "max_tokens": 200,
        "extra_body": {"temperature": 0},
    }
    message = claude.messages.create(**call, tool_choice={"type": "any"})
    with claude.messages.stream(**call, tool_choice={"type": "any"}) as stream:
        streamed = stream.get_final_message()
    uses = [[(b.name, b.input) for b in answer.content if b.type == "tool_use"] for answer in (message, streamed)]
    assert uses[0] == uses[1] and uses[0][0][1]["city"] == "Paris"
    client = openai.OpenAI(base_url=f"{coder_server.url}/v1", api_key="none", max_retries=0)
    form: Any = {"format": {"type": "json_schema", "name": "place", "schema": CLOSED, "strict": True}}
    answer = client.responses.create(model=MODEL, input=WEATHER, text=form, temperature=0, max_output_tokens=100)
    assert answer.status == "completed" and set(json.loads(answer.output_text)) >= {"city", "day"}
