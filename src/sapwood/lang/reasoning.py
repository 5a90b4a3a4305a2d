"""What a model thinks before it answers, cut off from the answer.

Owns nothing but the way from format names to the parsers of `parsing`. Invariant: reasoning and answer hold all of the text but
the marks between them.
"""

from __future__ import annotations

from sapwood.errors import ConfigError, InvalidRequest
from sapwood.parsing.formats import NONE, OutputFormat, find_format
from sapwood.parsing.pieces import Content, Reasoning

_SGLANG_NAMES = {"glm45": "glm", "kimi_k2": "kimi", "qwen3-thinking": "deepseek-r1"}


def check_reasoning_format(name: str) -> None:
    """Raise InvalidRequest for a format that there is not."""
    try:
        _format(name)
    except ConfigError as error:
        raise InvalidRequest(error.message.replace("reasoning parser", "model_type"), param="model_type") from None


def split_reasoning(text: str, name: str) -> tuple[str, str]:
    """(reasoning, answer)."""
    parser = _format(name).parser({})
    pieces = [*parser.feed(text), *parser.finish()]
    reasoning = "".join(piece.text for piece in pieces if isinstance(piece, Reasoning))
    return reasoning.strip(), "".join(piece.text for piece in pieces if isinstance(piece, Content))


def _format(name: str) -> OutputFormat:
    return find_format(NONE, _SGLANG_NAMES.get(name, name), "", frozenset())
