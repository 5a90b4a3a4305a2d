"""Keeping chat content out of the control tokens' way: what users wrote stays text, whatever it spells.

Before rendering, a private-use character (the mark) is put inside every spelling of a control token, and at the ends of strings
that could become one together with a neighbour. After rendering, control tokens without a mark are the template's own. Does not
know templates or ids. Invariant: a control token whose spelling comes even partly from marked data is encoded as plain text.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import re2

from sapwood.errors import InvalidRequest
from sapwood.tokenizer.text import valid_text

Pieces = list[tuple[str, bool]]
"""One prompt as runs of (text, whether control tokens in it are parsed)."""

_PRIVATE_USE = range(0xE000, 0xF900)
_MAX_DEPTH = 64
_MAX_PROGRAM_BYTES = 1 << 25
_NOTHING = r"[^\x{0}-\x{10FFFF}]"


class ControlScanner:
    """Finds the spellings of control tokens, whole and partial."""

    def __init__(self, control_texts: Iterable[str]) -> None:
        # A mark cannot stand inside a single character; no vocabulary in use has a control token of one.
        texts = sorted({text for text in control_texts if len(text) > 1}, key=len, reverse=True)
        self._whole = _any_of(texts)
        self._longest = len(texts[0]) if texts else 0
        # Words stay unmarked (a template may compare them): only parts that punctuation sets apart can join with others.
        self._beginnings = frozenset(text[:cut] for text in texts if not text[0].isalnum() for cut in range(1, len(text)))
        self._endings = frozenset(text[cut:] for text in texts if not text[-1].isalnum() for cut in range(1, len(text)))

    def needs_marks(self, value: Any) -> bool:
        """Whether any string in `value` has to be marked."""
        return any(self.mark(text, "\ue000") != text for text in _strings(value))

    def mark(self, text: str, mark: str) -> str:
        """`text` with marks; only they are inserted, nothing is changed."""
        # Again and again, because spellings can overlap.
        while self._whole.search(text):
            text = self._whole.sub(lambda found: found[0][0] + mark + found[0][1:], text)
        return self._mark_start(self._mark_end(text, mark), mark)

    def split(self, rendered: str, mark: str) -> Pieces:
        """The rendered prompt without marks, in runs: plain where marked text spells a control token, parsed elsewhere."""
        pieces: Pieces = []
        parsed: list[str] = []
        for fragment, control in self._fragments(rendered):
            clean = fragment.replace(mark, "")
            if clean != fragment and self._whole.search(clean):
                pieces += [("".join(parsed), True), (clean, False)]
                parsed = []
            else:
                parsed.append(clean)
            parsed.append(control)
        pieces.append(("".join(parsed), True))
        return [piece for piece in pieces if piece[0]]

    def _fragments(self, rendered: str) -> Iterator[tuple[str, str]]:
        """The text between the template's own control tokens, each with the control token that follows it (or nothing)."""
        position = 0
        for found in self._whole.finditer(rendered):
            yield rendered[position : found.start()], found[0]
            position = found.end()
        yield rendered[position:], ""

    def _mark_end(self, text: str, mark: str) -> str:
        body = text.rstrip()
        lengths = range(min(len(body), self._longest - 1), 0, -1)
        if any(body[-length:] in self._beginnings for length in lengths):
            return body + mark + text[len(body) :]
        return text

    def _mark_start(self, text: str, mark: str) -> str:
        body = text.lstrip()
        lengths = range(min(len(body), self._longest - 1), 0, -1)
        if any(body[:length] in self._endings for length in lengths):
            return text[: len(text) - len(body)] + mark + body
        return text


def mark_strings(value: Any, scanner: ControlScanner, mark: str) -> Any:
    """`value` with every string in it marked. Keys are marked only for whole control tokens: templates look keys up."""
    if isinstance(value, str):
        return scanner.mark(value, mark)
    if isinstance(value, dict):
        return {_mark_key(key, scanner, mark): mark_strings(item, scanner, mark) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [mark_strings(item, scanner, mark) for item in value]
    return value


def _mark_key(key: Any, scanner: ControlScanner, mark: str) -> Any:
    return scanner.mark(key, mark) if isinstance(key, str) and not key.isidentifier() else key


def unused_marks(count: int, *values: Any) -> list[str]:
    """Private-use characters that occur nowhere in `values`, neither as themselves nor escaped as in JSON."""
    present = json.dumps(values, ensure_ascii=False, default=str).lower()
    free = (chr(code) for code in _PRIVATE_USE if chr(code) not in present and escaped(chr(code)) not in present)
    marks = [mark for mark, _ in zip(free, range(count), strict=False)]
    if len(marks) < count:
        raise InvalidRequest("the messages use every private-use character (U+E000 to U+F8FF); leave one out", param="messages")
    return marks


def escaped(mark: str) -> str:
    """How JSON in ASCII spells the mark."""
    return f"\\u{ord(mark):04x}"


def plain_data(value: Any, depth: int = 0) -> Any:
    """A copy of JSON-like data with valid Unicode in it; raises InvalidRequest for anything else, and for very deep nesting."""
    if isinstance(value, str):
        return valid_text(value)
    if value is None or isinstance(value, (bool, int, float)):
        return value
    if depth > _MAX_DEPTH:
        raise InvalidRequest(f"the messages nest data more than {_MAX_DEPTH} levels deep; flatten it", param="messages")
    if isinstance(value, Mapping):
        return {valid_text(str(name)): plain_data(item, depth + 1) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain_data(item, depth + 1) for item in value]
    raise InvalidRequest(f"the messages hold a {type(value).__name__}, which is not JSON data", param="messages")


def _any_of(texts: list[str]) -> Any:
    """A pattern of these literals, the longest first; RE2, because there may be thousands."""
    options = re2.Options()
    options.max_mem = _MAX_PROGRAM_BYTES
    return re2.compile("|".join(map(re2.escape, texts)) if texts else _NOTHING, options)


def _strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for key, item in value.items():
            if isinstance(key, str) and not key.isidentifier():
                yield key
            yield from _strings(item)
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _strings(item)
