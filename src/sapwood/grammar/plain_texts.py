"""Terminals for values that are written without quotes, up to a mark.

Owns the spelling of `pattern`, `format` and lengths for such texts; knows no tags and no rules. Invariant: a text that a terminal
takes is read (`plain_values.read_plain`) as a value that its schema allows, and does not hold the mark.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from llguidance import regex_to_lark

from sapwood.grammar.plain_values import ANNOTATIONS, ANY, Branch, read_plain

_REST = "(.|\\n)*"
_WHOLE = "-?(0|[1-9][0-9]{0,17})"
_PLAIN = {
    "null": '"null"',
    "boolean": "/true|false/",
    "integer": f"/{_WHOLE}/",
    "number": rf"/{_WHOLE}(\.[0-9]{{1,17}})?([eE][+-]?[0-9]{{1,2}})?/",
}
_DAY = "0[1-9]|1[0-9]|2[0-8]"
_DATE = f"[0-9]{{4}}-((0[1-9]|1[0-2])-({_DAY})|(0[13-9]|1[0-2])-(29|30)|(0[13578]|1[02])-31)"
_HOUR = "([01][0-9]|2[0-3]):[0-5][0-9]"
_TIME = rf"{_HOUR}:[0-5][0-9](\.[0-9]{{1,6}})?(Z|[+-]{_HOUR})"
_HEX, _BYTE = "[0-9a-fA-F]", "(25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])"
_LABEL, _WORD = "[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?", "[A-Za-z0-9_+-]{1,60}"
_QUERY = "[A-Za-z0-9._~=&+-]{0,500}"
_HOST = rf"{_LABEL}(\.{_LABEL}){{0,3}}"
_FORMATS = {  # each a part of what the format allows
    "date": _DATE,
    "time": _TIME,
    "date-time": f"{_DATE}T{_TIME}",
    "duration": "P([0-9]{1,4}D(T[0-9]{1,4}H)?|T([0-9]{1,4}H([0-9]{1,2}M)?|[0-9]{1,4}M([0-9]{1,2}S)?|[0-9]{1,4}S))",
    "uuid": f"{_HEX}{{8}}-{_HEX}{{4}}-{_HEX}{{4}}-{_HEX}{{4}}-{_HEX}{{12}}",
    "ipv4": rf"({_BYTE}\.){{3}}{_BYTE}",
    "hostname": _HOST,
    "email": rf"{_WORD}(\.{_WORD}){{0,3}}@{_LABEL}(\.{_LABEL}){{1,3}}",
    "uri": rf"[a-z][a-z0-9+.-]{{0,15}}:\/\/{_HOST}(:[0-9]{{1,5}})?(\/[A-Za-z0-9._~-]{{0,100}}){{0,16}}(\?{_QUERY})?",
}
_BOUNDS = frozenset(("minLength", "maxLength", "pattern", "format"))


class CannotBeTold(Exception):
    """Why the values of a schema cannot be written without quotes."""


def plain_text(found: Sequence[Branch], mark: str) -> str:
    """The right side of a terminal for a value that may be a text, among the kinds of `found`; raises CannotBeTold."""
    kinds = frozenset(branch.kind for branch in found)
    without_mark = f"~(TEXT {json.dumps(mark)} TEXT)"
    if ANY in kinds:
        return f"TEXT & {without_mark}"
    options: list[str] = []
    for branch in found:
        if branch.values is not None:
            options += _listed(branch, kinds, mark)
        elif branch.kind == "string":
            options.append(f"({' & '.join([*text_terms(branch.schema), without_mark])})")
        elif branch.is_plain and branch.kind in _PLAIN:
            options.append(_PLAIN[branch.kind])
        else:
            raise CannotBeTold(f"may be a text or something else ({branch.kind}), which are not told apart without quotes")
    is_open = any(branch.kind == "string" and branch.values is None for branch in found)
    if is_open and any(branch.values is not None and branch.kind != "string" for branch in found):
        raise CannotBeTold("may be a text or one of a list of other values, which are not told apart without quotes")
    if not options:
        raise CannotBeTold("has no value that can be written without quotes")
    return " | ".join(options)


def _listed(branch: Branch, kinds: frozenset[str], mark: str) -> list[str]:
    """Literals of those values that are read as what they are."""
    spelled = [(value, value if isinstance(value, str) else json.dumps(value)) for value in branch.values or ()]
    return [json.dumps(text) for value, text in spelled if text and mark not in text and read_plain(text, kinds) == value]


def text_terms(schema: Mapping[str, Any]) -> list[str]:
    """What a text has to be, as terms of a terminal that all hold; raises CannotBeTold."""
    odd = sorted(schema.keys() - ANNOTATIONS - {"type"} - _BOUNDS)
    if odd:
        raise CannotBeTold(f"is a text without quotes, for which {odd[0]} cannot be honoured")
    terms = ["TEXT"]
    least, most = count(schema, "minLength"), count(schema, "maxLength")
    if least is not None or most is not None:
        terms.append(f"/(.|\\n){{{least or 0},{'' if most is None else most}}}/")
    pattern, form = schema.get("pattern", ""), schema.get("format")
    if not isinstance(pattern, str):
        raise CannotBeTold("has a pattern that is no text")
    if pattern:
        terms.append(_searched(pattern))
    if form is not None:
        if not isinstance(form, str) or form not in _FORMATS:
            known = ", ".join(_FORMATS)
            raise CannotBeTold(f"is a text without quotes, whose format can only be one of {known}; say it as a pattern")
        terms.append(f"/{_FORMATS[form]}/")
    return terms


def count(schema: Mapping[str, Any], name: str) -> int | None:
    """A bound of a schema, None where there is none; raises CannotBeTold."""
    value = schema.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < 2**31 or value != int(value):
        raise CannotBeTold(f"has a {name} that is no whole number from 0")
    return int(value)


def _searched(pattern: str) -> str:
    """A term for texts in which the regular expression is found."""
    start, end = pattern.startswith("^"), pattern.endswith("$") and not _is_escaped(pattern)
    inner = regex_to_lark(pattern[1 if start else 0 : -1 if end else None], "")
    return f"/{'' if start else _REST}(?:{inner}){'' if end else _REST}/"


def _is_escaped(pattern: str) -> bool:
    """Whether the last character stands for itself."""
    before = pattern[:-1]
    return (len(before) - len(before.rstrip("\\"))) % 2 == 1
