"""The object that a JSON text holds, also when it breaks off: dialects that send arguments as data need one.

Knows JSON only. Invariant: a whole object comes back as it is; of a broken one the members that were complete.
"""

from __future__ import annotations

import json
import re
from typing import Any

_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"|[{}\[\],]')
_CLOSERS = {"{": "}", "[": "]"}


def partial_object(text: str) -> dict[str, Any]:
    """The object in `text`; empty when nothing of it is complete."""
    for candidate in _candidates(text):
        try:
            value = json.loads(candidate)
        except (ValueError, RecursionError):
            continue
        if isinstance(value, dict):
            return value
    return {}


def _candidates(text: str) -> list[str]:
    """The text, and its beginnings that end before a comma or at a bracket, closed; the longest first."""
    closers: list[str] = []
    cuts: list[str] = []
    for token in _TOKEN.finditer(text):
        mark = token[0]
        if mark in _CLOSERS:
            closers.append(_CLOSERS[mark])
            cuts.append(text[: token.end()] + "".join(reversed(closers)))
        elif mark == "," and closers:
            cuts.append(text[: token.start()] + "".join(reversed(closers)))
        elif mark in "]}" and closers:
            closers.pop()
            cuts.append(text[: token.end()] + "".join(reversed(closers)))
    return [text, text + "".join(reversed(closers)), *reversed(cuts[-64:]), *cuts[:1]]
