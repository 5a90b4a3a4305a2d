"""One JSON value, character by character: where it ends, or where it stops being JSON.

Knows RFC 8259 only; makes no values. Invariant: what it hands on for a value that it finds whole is accepted by a JSON decoder
and means the same (control characters that a model wrote raw into a string are escaped; nothing else is changed).
"""

from __future__ import annotations

import json
import re
from enum import Enum, auto

MAX_DEPTH = 128
_NUMBER = re.compile(r"-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?")
_NUMBER_CHARS = frozenset("0123456789+-.eE")
_IN_STRING = re.compile(r'[^"\\\x00-\x1f]+')
_SPACE = frozenset(" \t\n\r")
_WORDS = {"t": "true", "f": "false", "n": "null"}
_HEX = frozenset("0123456789abcdefABCDEF")


class _Expect(Enum):
    VALUE = auto()
    VALUE_OR_END = auto()
    KEY = auto()
    KEY_OR_END = auto()
    COLON = auto()
    COMMA_OR_END = auto()
    STRING = auto()
    ESCAPE = auto()
    HEX = auto()
    NUMBER = auto()
    WORD = auto()


class JsonScanner:
    """Fed with text until `is_done` or `has_failed`."""

    def __init__(self) -> None:
        self.is_done = False
        self.has_failed = False
        self._expect = _Expect.VALUE
        self._open: list[str] = []
        self._is_key = False
        self._token = ""

    def feed(self, text: str, start: int) -> tuple[int, str]:
        """Where in `text` the scanner stands now, having begun at `start`, and what it read."""
        place, parts = start, []
        while place < len(text) and not self.is_done and not self.has_failed:
            if self._expect is _Expect.STRING and (run := _IN_STRING.match(text, place)):
                parts.append(run[0])
                place = run.end()
                continue
            char = text[place]
            written = self._take(char)
            if written is None:  # the character ends a number and belongs to what follows
                continue
            if not self.has_failed:
                parts.append(written)
                place += 1
        return place, "".join(parts)

    def finish(self) -> bool:
        """The text has ended; returns whether the value is whole."""
        if self._expect is _Expect.NUMBER and not self._open:
            self._end_number()
        return self.is_done

    def _take(self, char: str) -> str | None:
        match self._expect:
            case _Expect.STRING:
                return self._in_string(char)
            case _Expect.ESCAPE:
                self._expect = _Expect.HEX if char == "u" else _Expect.STRING
                self._token = ""
                return self._check(char in '"\\/bfnrtu', char)
            case _Expect.HEX:
                self._token += char
                if len(self._token) == 4:
                    self._expect = _Expect.STRING
                return self._check(char in _HEX, char)
            case _Expect.NUMBER:
                if char in _NUMBER_CHARS:
                    self._token += char
                    return char
                self._end_number()
                return None
            case _Expect.WORD:
                word = _WORDS[self._token[0]]
                self._token += char
                if self._token == word:
                    self._end_value()
                return self._check(word.startswith(self._token), char)
            case _:
                return char if char in _SPACE else self._between(char)

    def _in_string(self, char: str) -> str:
        if char == '"':
            if self._is_key:
                self._is_key, self._expect = False, _Expect.COLON
            else:
                self._end_value()
        elif char == "\\":
            self._expect = _Expect.ESCAPE
        else:
            return json.dumps(char)[1:-1]
        return char

    def _between(self, char: str) -> str:
        """A character outside of strings, numbers and words."""
        expect = self._expect
        if expect is _Expect.COLON:
            self._expect = _Expect.VALUE
            return self._check(char == ":", char)
        if expect is _Expect.COMMA_OR_END and char == ",":
            self._expect = _Expect.KEY if self._open[-1] == "{" else _Expect.VALUE
            return char
        if char in "]}" and expect in (_Expect.COMMA_OR_END, _Expect.KEY_OR_END, _Expect.VALUE_OR_END):
            closes = self._open.pop() + char in ("[]", "{}")
            self._end_value()
            return self._check(closes, char)
        if expect in (_Expect.KEY, _Expect.KEY_OR_END):
            self._is_key, self._expect = True, _Expect.STRING
            return self._check(char == '"', char)
        return self._begin_value(char) if expect is not _Expect.COMMA_OR_END else self._check(False, char)

    def _begin_value(self, char: str) -> str:
        if char in "{[":
            self._open.append(char)
            self._expect = _Expect.KEY_OR_END if char == "{" else _Expect.VALUE_OR_END
            return self._check(len(self._open) <= MAX_DEPTH, char)
        self._token = char
        if char == '"':
            self._expect = _Expect.STRING
        elif char in _WORDS:
            self._expect = _Expect.WORD
        else:
            self._expect = _Expect.NUMBER
            return self._check(char == "-" or char.isdigit() and char.isascii(), char)
        return char

    def _end_number(self) -> None:
        self._end_value()
        self._check(_NUMBER.fullmatch(self._token) is not None, "")

    def _end_value(self) -> None:
        self._expect = _Expect.COMMA_OR_END
        self.is_done = not self._open

    def _check(self, is_right: bool, char: str) -> str:
        if not is_right:
            self.has_failed, self.is_done = True, False
        return char
