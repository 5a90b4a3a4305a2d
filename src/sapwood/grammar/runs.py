"""How long a text a constraint may insist on.

Knows how repetitions are written; compiles nothing. llguidance follows what must come byte by byte before it fills a mask,
however long that is. Invariant: what passes never insists on more than `MAX_RUN` characters at a time.
"""

from __future__ import annotations

import re
from typing import Any

from sapwood.errors import InvalidRequest

MAX_RUN = 16_384
_REPEAT = re.compile(r"\{(\d{1,20})(?:,\d*)?\}")
_GROUP = re.compile(r"\((?:\?(?:P?<\w+>|[a-zA-Z-]*:?))?")
_CLASS = re.compile(r"\[\^?\]?(?:\[:\^?\w+:\]|\\.|[^\]\\])*\]", re.DOTALL)
_LARK_REGEX = re.compile(r"/((?:[^/\\\n]|\\.)+)/")
_LITERAL = re.compile(r'"(?:[^"\\]|\\.)*"', re.DOTALL)


def shortest_length(pattern: str) -> int:
    """At least how many characters a text has that the regular expression takes; alternatives count together."""
    totals, last, place = [0], 0, 0
    while place < len(pattern):
        char, step = pattern[place], 1
        if found := _GROUP.match(pattern, place):
            totals.append(0)
            last, step = 0, len(found[0])
        elif char == ")" and len(totals) > 1:
            last = totals.pop()
            totals[-1] += last
        elif char in "*?":
            totals[-1] -= last
            last = 0
        elif char == "{" and (found := _REPEAT.match(pattern, place)):
            totals[-1] += (int(found[1]) - 1) * last
            last, step = int(found[1]) * last, len(found[0])
        elif char not in "|^$+":
            found = _CLASS.match(pattern, place)
            step = len(found[0]) if found else 2 if char == "\\" else 1
            last = 1
            totals[-1] += 1
        place += step
    return sum(totals)


def check_regex(pattern: str, kind: str) -> None:
    """Raise InvalidRequest for a regular expression that insists on too long a text."""
    check_length(shortest_length(pattern), kind)


def check_grammar(text: str, kind: str) -> None:
    """The same for the literals and regular expressions of a grammar in Lark's notation."""
    for found in _LITERAL.finditer(text):
        check_length(len(found[0]), kind)
    for found in _LARK_REGEX.finditer(text):
        check_regex(found[1], kind)


def check_node(node: Any) -> None:
    """The same for one part of a JSON Schema."""
    if isinstance(node, str):
        check_length(len(node), "json_schema")
    if not isinstance(node, dict):
        return
    patterns = node.get("patternProperties")
    for pattern in (node.get("pattern"), *(patterns if isinstance(patterns, dict) else ())):
        if isinstance(pattern, str):
            check_regex(pattern, "json_schema")
    shortest = node.get("minLength")
    if isinstance(shortest, int | float):
        check_length(shortest, "json_schema")


def check_length(length: float, kind: str) -> None:
    """Raise InvalidRequest for a text that is too long to be insisted on."""
    if length <= MAX_RUN:
        return
    message = f"{kind} insists on a text of {length:.3g} characters, {MAX_RUN} are the limit; make it shorter"
    raise InvalidRequest(message, param=kind)
