"""Joined deltas are the answer that comes whole: for every parser on every route that makes text."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from serverkit import FakeBackend, House, ask, make_house
from test_tool_calls import HERMES
from test_usage import events_of

sys.path.insert(0, str(Path(__file__).parents[1] / "unit" / "parsing"))
from parsing_texts import FORMS, SEVERAL, TOOLS

Events = list[dict[str, Any]]
MESSAGES = [{"role": "user", "content": "hi"}]
FUNCTIONS = [{"name": name, "parameters": parameters} for name, parameters in TOOLS.items()]
ANTHROPIC_TOOLS = [{"name": name, "input_schema": parameters} for name, parameters in TOOLS.items()]
OPENAI_TOOLS = [{"type": "function", "function": function} for function in FUNCTIONS]
REASONING = {"kimi": ("kimi", "◁think▷Hm, ja.◁/think▷"), "gpt-oss": (
    "gpt-oss", "<|channel|>analysis<|message|>Hm, ja.<|end|><|start|>assistant")}  # fmt: skip
PLAIN = ("qwen3", "<think>Hm, ja.</think>\n\n")


@dataclass
class Said:
    """What a client has of an answer: its text, its reasoning, its calls."""

    content: str
    reasoning: str
    calls: list[tuple[str, Any]]


EXPECTED = Said("Let me see.", "Hm, ja.", [("now", {}), ("get_weather", {"city": "Oslo"})])


def chat_said(events: Events, key: str) -> Said:
    said, names, arguments = Said("", "", []), dict[int, str](), dict[int, str]()
    for part in [choice[key] for event in events for choice in event["choices"]]:
        said.content += part.get("content") or ""
        said.reasoning += part.get("reasoning_content") or ""
        for place, call in enumerate(part.get("tool_calls") or ()):
            index = call.get("index", place)
            names[index] = names.get(index, "") + call["function"].get("name", "")
            arguments[index] = arguments.get(index, "") + call["function"]["arguments"]
    said.calls = [(names[index], json.loads(arguments[index])) for index in sorted(names)]
    return said


def items_said(items: Events) -> Said:
    """Of a response's output."""
    texts = {"message": "", "reasoning": ""}
    for item in items:
        if item["type"] in texts:
            texts[item["type"]] += "".join(part["text"] for part in item["content"])
    calls = [(item["name"], json.loads(item["arguments"])) for item in items if item["type"] == "function_call"]
    return Said(texts["message"], texts["reasoning"], calls)


def responses_joined(events: Events) -> Said:
    """Of a response's deltas; the items that end the stream must say the same."""
    texts, names, arguments = {"output_text": "", "reasoning_text": ""}, list[str](), list[str]()
    for event in events:
        match event["type"].split("."):
            case ["response", "output_item", "added"] if event["item"]["type"] == "function_call":
                names.append(event["item"]["name"])
                arguments.append("")
            case ["response", "function_call_arguments", "delta"]:
                arguments[-1] += event["delta"]
            case ["response", ("output_text" | "reasoning_text") as kind, "delta"]:
                texts[kind] += event["delta"]
    said = Said(texts["output_text"], texts["reasoning_text"], list(zip(names, map(json.loads, arguments), strict=True)))
    assert items_said(events[-1]["response"]["output"]) == said
    return said


def blocks_said(blocks: Events) -> Said:
    """Of Anthropic's content."""
    texts = {kind: "".join(block[kind] for block in blocks if block["type"] == kind) for kind in ("text", "thinking")}
    return Said(
        texts["text"], texts["thinking"], [(block["name"], block["input"]) for block in blocks if block["type"] == "tool_use"]
    )


def anthropic_joined(events: Events) -> Said:
    blocks: Events = []
    for event in events:
        if event["type"] == "content_block_start":
            blocks.append({**event["content_block"], "json": ""})
        elif event["type"] == "content_block_delta":
            kind = event["delta"]["type"].removesuffix("_delta")
            name = "json" if kind == "input_json" else kind
            blocks[event["index"]][name] += event["delta"]["partial_json" if name == "json" else name]
    return blocks_said([{**block, "input": json.loads(block["json"] or "{}")} for block in blocks])


def ollama_said(events: Events) -> Said:
    messages = [event["message"] for event in events]
    calls = [call["function"] for message in messages for call in message.get("tool_calls") or ()]
    return Said(
        "".join(message["content"] for message in messages),
        "".join(message.get("thinking") or "" for message in messages),
        [(call["name"], call["arguments"]) for call in calls],
    )


@dataclass(frozen=True)
class Route:
    """Where parsers work: the body, and how an answer is read whole and joined."""

    path: str
    body: dict[str, Any]
    whole: Callable[[Events], Said]
    joined: Callable[[Events], Said]


ROUTES = [
    Route("/v1/chat/completions", {"messages": MESSAGES, "tools": OPENAI_TOOLS, "stop": "\0", "max_tokens": 900},
          lambda events: chat_said(events, "message"), lambda events: chat_said(events, "delta")),
    Route("/v1/responses", {"input": MESSAGES, "tools": [{"type": "function", **function} for function in FUNCTIONS],
                            "stop": "\0", "max_output_tokens": 900},
          lambda events: items_said(events[0]["output"]), responses_joined),
    Route("/v1/messages", {"messages": MESSAGES, "max_tokens": 900, "stop_sequences": ["\0"], "tools": ANTHROPIC_TOOLS},
          lambda events: blocks_said(events[0]["content"]), anthropic_joined),
    Route("/api/chat", {"messages": MESSAGES, "tools": OPENAI_TOOLS, "options": {"stop": ["\0"], "num_predict": 900}},
          ollama_said, ollama_said),
]  # fmt: skip


def house_of(form: str, text: str) -> House:
    reasoning, _ = REASONING.get(form, PLAIN)
    backend = FakeBackend(text + "\0")
    return make_house(backend, template=HERMES, context_len=4096, tool_call_parser=form, reasoning_parser=reasoning)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("route", ROUTES, ids=lambda route: str(route.path))
def test_deltas_join_to_the_whole_answer(route: Route, form: str) -> None:
    text = REASONING.get(form, PLAIN)[1] + SEVERAL[form]
    house = house_of(form, text)
    whole = events_of(ask(house, "POST", route.path, json={**route.body, "stream": False}))
    parts = events_of(ask(house, "POST", route.path, json={**route.body, "stream": True}))
    assert route.whole(whole) == EXPECTED
    assert route.joined(parts) == EXPECTED
    assert len(parts) > 8, "it came in pieces"


TEXT_ROUTES: list[tuple[str, dict[str, Any], Callable[[Events], str]]] = [
    ("/v1/completions", {"prompt": "a", "max_tokens": 300, "stop": "\0"},
     lambda events: "".join(choice["text"] for event in events for choice in event["choices"])),
    ("/api/generate", {"prompt": "a", "options": {"num_predict": 300, "stop": ["\0"]}},
     lambda events: "".join(event["response"] for event in events)),
    ("/generate", {"text": "a", "sampling_params": {"max_new_tokens": 300, "stop": "\0"}},
     lambda events: str(events[-1]["text"])),
]  # fmt: skip


@pytest.mark.parametrize(("path", "body", "read"), TEXT_ROUTES, ids=lambda value: str(value)[:16])
def test_routes_of_text_stream_what_they_say(path: str, body: dict[str, Any], read: Callable[[Events], str]) -> None:
    text = "Größe – 4 🙂 <tool_call> ende."
    house = make_house(FakeBackend(text + "\0"), context_len=1024)
    for stream in (False, True):
        assert read(events_of(ask(house, "POST", path, json={**body, "stream": stream}))) == text
