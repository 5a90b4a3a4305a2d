"""How many characters a match of an RE2 pattern can span at most.

Reads patterns that RE2 has already accepted; does not match anything. Invariant: the answer is never too small; each \\b and
\\B counts as one character, because they look at the one after a match.
"""

from __future__ import annotations

import re

UNBOUNDED = 1 << 16
"""Stands for "no maximum"; sums and products saturate here."""

_REPEAT = re.compile(r"(?:[*+?]|\{(\d+)(?:(,)(\d*))?\})\??")
_GROUP_OPEN = re.compile(r"\((?:\?(?:P?<\w+>|[imsU-]*(:|\))))?")
_QUOTED = re.compile(r"\\Q(.*?)(?:\\E|$)", re.DOTALL)
_CLASS = re.compile(r"\[\^?\]?(?:\[:\^?\w+:\]|\\.|[^\]\\])*\]", re.DOTALL)
_ESCAPE = re.compile(r"\\(?:[pP]\{[^}]*\}|[pP].|x\{[^}]*\}|x..|[0-7]{1,3}|.)", re.DOTALL)
_ZERO_WIDTH = frozenset({"^", "$", r"\A", r"\z"})


def max_width(pattern: str) -> int:
    """The largest number of characters that a match of `pattern` spans; `UNBOUNDED` if there is none below it."""
    return _Reader(pattern).alternatives()


class _Reader:
    """Walks once over a pattern; each method consumes what it is named after and returns its width."""

    def __init__(self, pattern: str) -> None:
        self._pattern = pattern
        self._position = 0

    def alternatives(self) -> int:
        widest = 0
        width = 0
        while self._position < len(self._pattern) and self._pattern[self._position] != ")":
            if self._pattern[self._position] == "|":
                self._position += 1
                widest, width = max(widest, width), 0
            else:
                width = min(UNBOUNDED, width + self._repeated())
        return max(widest, width)

    def _repeated(self) -> int:
        width = self._atom()
        while (match := _REPEAT.match(self._pattern, self._position)) is not None:
            self._position = match.end()
            # Of what spans nothing (flags, an empty quotation) RE2 repeats what stands before it.
            width = min(UNBOUNDED, width * _most_repeats(match)) if width else UNBOUNDED
        return width

    def _atom(self) -> int:
        char = self._pattern[self._position]
        if char == "(":
            return self._group()
        if char == "[":
            return self._take(_CLASS, 1)
        if char == "\\":
            quoted = _QUOTED.match(self._pattern, self._position)
            if quoted is not None:
                self._position = quoted.end()
                return len(quoted[1])
            start = self._position
            self._take(_ESCAPE, 1)
            return 0 if self._pattern[start : self._position] in _ZERO_WIDTH else 1
        self._position += 1
        return 0 if char in _ZERO_WIDTH else 1

    def _group(self) -> int:
        match = _GROUP_OPEN.match(self._pattern, self._position)
        assert match is not None
        self._position = match.end()
        if match[1] == ")":  # only sets flags
            return 0
        width = self.alternatives()
        self._position += 1
        return width

    def _take(self, part: re.Pattern[str], width: int) -> int:
        match = part.match(self._pattern, self._position)
        self._position = match.end() if match is not None else len(self._pattern)
        return width


def _most_repeats(match: re.Match[str]) -> int:
    least, comma, most = match.groups()
    if least is None:
        return 1 if match[0].startswith("?") else UNBOUNDED
    if comma is None:
        return int(least)
    return int(most) if most else UNBOUNDED
