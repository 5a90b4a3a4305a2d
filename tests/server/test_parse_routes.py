"""`/parse_function_call` and `/separate_reasoning`."""

from __future__ import annotations

from typing import Any

import pytest
from serverkit import ask, make_house
from test_tool_calls import CALLS, OTHER, THINKING, THOUGHTS, TOOL, speaking


def test_calls_in_a_text() -> None:
    expected = {
        "normal_text": "Let me see.",
        "calls": [
            {"tool_index": 0, "name": "f", "parameters": '{"city": "Zürich"}'},
            {"tool_index": 1, "name": "g", "parameters": "{}"},
        ],
    }
    body = {"text": CALLS, "tools": [TOOL, OTHER]}
    assert ask(speaking(""), "POST", "/parse_function_call", json=body).json() == expected
    assert ask(make_house(), "POST", "/parse_function_call", json={**body, "tool_call_parser": "qwen25"}).json() == expected
    other = ask(speaking(""), "POST", "/parse_function_call", json={**body, "tool_call_parser": "mistral"}).json()
    assert other == {"normal_text": CALLS, "calls": []}


def test_reasoning_in_a_text() -> None:
    expected = {"reasoning_text": "Hm. Zürich it is.", "text": "Yes."}
    body = {"text": THOUGHTS + "Yes."}
    assert ask(speaking("", THINKING), "POST", "/separate_reasoning", json=body).json() == expected
    assert ask(make_house(), "POST", "/separate_reasoning", json=body).json() == {"reasoning_text": "", "text": body["text"]}
    named = {"text": "Hm.</think>Yes.", "reasoning_parser": "deepseek-r1"}
    answer = ask(make_house(), "POST", "/separate_reasoning", json=named).json()
    assert answer == {"reasoning_text": "Hm.", "text": "Yes."}


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/parse_function_call", {"text": "x", "tools": [TOOL], "tool_call_parser": "x"}, "tool_call_parser"),
        ("/parse_function_call", {"text": "x"}, "tools"),
        ("/parse_function_call", {"text": "x", "tools": [{}]}, "tools[0]"),
        ("/separate_reasoning", {"text": "x", "reasoning_parser": "x"}, "reasoning_parser"),
        ("/separate_reasoning", {"reasoning_parser": "qwen3"}, "text"),
    ],
)
def test_what_is_wrong_is_named(path: str, body: dict[str, Any], param: str) -> None:
    response = ask(make_house(), "POST", path, json=body)
    assert response.status_code == 400 and response.json()["error"]["param"] == param
