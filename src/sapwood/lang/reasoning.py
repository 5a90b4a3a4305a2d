"""What a model thinks before it answers, cut off from the answer.

Owns nothing but the way from SGLang's format names to the parsers. Invariant: reasoning and answer hold all of the text but the
marks between them.
"""

from __future__ import annotations

from sapwood.errors import InvalidRequest

_TAGS = {
    "qwen3": ("<think>", "</think>", False),
    "glm45": ("<think>", "</think>", False),
    "kimi": ("◁think▷", "◁/think▷", False),
    "deepseek-r1": ("<think>", "</think>", True),
    "qwen3-thinking": ("<think>", "</think>", True),
}


def check_reasoning_format(name: str) -> None:
    """Raise InvalidRequest for a format that there is not."""
    if name not in _TAGS:
        raise InvalidRequest(f"model_type must be one of {', '.join(_TAGS)}, got {name!r}", param="model_type")


def split_reasoning(text: str, name: str) -> tuple[str, str]:
    """(reasoning, answer)."""
    begin, end, is_implied = _TAGS[name]
    body = text.lstrip()
    if not is_implied and not body.startswith(begin):
        return "", text
    reasoning, _, answer = body.removeprefix(begin).partition(end)
    return reasoning.strip("\n"), answer.lstrip("\n")
