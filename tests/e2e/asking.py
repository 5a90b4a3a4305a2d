"""What the tests of clients ask: one question, for words or for a call of a tool."""

from __future__ import annotations

from typing import Any

MODEL = "qwen2.5-coder-0.5b-instruct"
COLOURS: list[Any] = [{"role": "user", "content": "Name three colours, separated by commas."}]
WEATHER: list[Any] = [{"role": "user", "content": "What is the weather in Paris today?"}]
DESCRIPTION = "The weather in a city on a day."
PARAMETERS: dict[str, Any] = {
    "type": "object",
    "properties": {"city": {"type": "string"}, "day": {"type": "string"}},
    "required": ["city", "day"],
}
TOOL: Any = {"type": "function", "function": {"name": "get_weather", "description": DESCRIPTION, "parameters": PARAMETERS}}
CALLED = ("get_weather", {"city": "Paris", "day": "today"})
"""What the model answers to `WEATHER` when it takes the most probable tokens."""
MAX_TOKENS = 64
