"""A value that is none of the few that a field takes was "invalid enum value", which did not say what to send instead; and it was
repeated in full, however long.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec
import pytest

from sapwood.errors import InvalidRequest
from sapwood.server.anthropic.schema import InputMessage
from sapwood.server.body import SHOWN_CHARS, Decoder
from sapwood.server.native.control import MemoryFields, PauseFields
from sapwood.server.ollama.schema import ChatMessage
from sapwood.server.openai.embeddings import EmbeddingFields
from sapwood.server.openai.schema import ChatFields


class Circle(msgspec.Struct):
    fill: Literal[1, 2] = 1


class Shapes(msgspec.Struct):
    one: Circle | str | None = None
    many: list[Circle | str] = []
    colours: dict[str, Literal["red", "blue"]] = {}


def blame(kind: type[Any], body: str) -> InvalidRequest:
    with pytest.raises(InvalidRequest) as caught:
        Decoder(kind).decode(body.encode())
    return caught.value


@pytest.mark.parametrize(
    ("kind", "body", "param", "choices"),
    [
        (Shapes, '{"one": {"fill": 0}}', "one.fill", "1, 2"),
        (Shapes, '{"many": ["square", {"fill": 3}]}', "many[1].fill", "1, 2"),
        (Shapes, '{"colours": {"sky": "grey"}}', "colours[...]", "blue, red"),
        (
            ChatFields,
            '{"messages": [{"role": "robot", "content": "x"}]}',
            "messages[0].role",
            "assistant, developer, function, system, tool, user",
        ),
        (
            ChatFields,
            '{"messages": [], "reasoning_effort": "huge"}',
            "reasoning_effort",
            "high, low, max, medium, minimal, none, xhigh",
        ),
        (EmbeddingFields, '{"input": "x", "encoding_format": "hex"}', "encoding_format", "base64, float"),
        (InputMessage, '{"role": "system", "content": "x"}', "role", "assistant, user"),
        (ChatMessage, '{"role": "robot"}', "role", "assistant, system, tool, user"),
        (PauseFields, '{"mode": "sleep"}', "mode", "abort, in_place, retract"),
        (MemoryFields, '{"tags": ["kv_cache", "heap"]}', "tags[1]", "cuda_graph, kv_cache, weights"),
    ],
)
def test_the_message_names_what_may_be_sent(kind: type[Any], body: str, param: str, choices: str) -> None:
    error = blame(kind, body)
    assert error.param == param
    assert str(error).endswith(f"is not allowed; choose one of {choices}")


def test_a_long_value_is_not_repeated_in_full() -> None:
    error = blame(PauseFields, '{"mode": "' + "x" * 100_000 + '"}')
    assert len(str(error)) < 2 * SHOWN_CHARS + 50
