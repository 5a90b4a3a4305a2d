"""The chat templates that come with the package: each renders a chat, and the name of one is as good as a file."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from sapwood.config.options import BY_NAME
from sapwood.errors import ConfigError, InvalidRequest
from sapwood.tokenizer.byte_vocabulary import byte_tokenizer
from sapwood.tokenizer.chat import ChatOptions
from sapwood.tokenizer.load import TEMPLATES, open_chat

TOKENIZER = byte_tokenizer()
CHAT = [
    {"role": "system", "content": "be brief"},
    {"role": "user", "content": "hi"},
    {"role": "assistant", "content": "hello"},
    {"role": "user", "content": "bye"},
]
TOOLS = [{"type": "function", "function": {"name": "f", "description": "d", "parameters": {"type": "object"}}}]
CALL = {"id": "1", "type": "function", "function": {"name": "f", "arguments": {"x": 1}}}


def rendered(name: str, messages: list[dict[str, object]], options: ChatOptions | None = None) -> str:
    return "".join(text for text, _ in open_chat(TOKENIZER, name).render(messages, options))


@pytest.mark.parametrize("name", TEMPLATES)
def test_each_renders_a_chat(name: str) -> None:
    text = rendered(name, CHAT)
    places = [text.index(str(message["content"])) for message in CHAT]
    assert places == sorted(places)
    begun = rendered(name, CHAT, ChatOptions(add_generation_prompt=False))
    assert text.startswith(begun) and len(text) > len(begun)
    left_open = rendered(name, [*CHAT, {"role": "assistant", "content": "so lo"}], ChatOptions(continue_final_message=True))
    assert left_open.endswith("so lo")


@pytest.mark.parametrize("name", ["hermes", "llama3"])
def test_those_for_tools_show_them(name: str) -> None:
    turns = [*CHAT, {"role": "assistant", "content": "", "tool_calls": [CALL]}, {"role": "tool", "content": "seven"}]
    text = rendered(name, [*turns, {"role": "user", "content": "so?"}], ChatOptions(tools=TOOLS))
    assert json.dumps("f") in text and json.dumps({"x": 1}) in text and "seven" in text
    assert open_chat(TOKENIZER, name).reads_tools


def test_without_tools_hermes_is_chatml() -> None:
    assert rendered("hermes", CHAT) == rendered("chatml", CHAT)


def test_a_template_that_refuses_does_so_in_its_own_words() -> None:
    with pytest.raises(InvalidRequest, match="the alpaca template knows system, user and assistant, not tool"):
        rendered("alpaca", [{"role": "tool", "content": "x"}])


def test_a_name_that_is_neither_lists_the_names(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="alpaca, chatml, hermes, llama3"):
        open_chat(TOKENIZER, str(tmp_path / "none"))
    assert all(name in BY_NAME["chat_template"].help for name in TEMPLATES)
