"""Stop strings and stop regexes over streamed text.

Owns the search and the text held back for it; does not know tokens. Invariants: delivered text never holds the beginning of a
stop string that a later text completes; for stop strings the outcome depends on the text alone, not on how it was cut.

Which stop wins: the one whose last character comes first, of those the longest; against a regex in the same text, the one that
starts first. A regex is searched after each text over the text so far. A pattern whose matches span at most `WINDOW_CHARS`
characters holds back one less than that, so it is trimmed exactly; a pattern without such a maximum sees the last `WINDOW_CHARS`
characters, holds nothing back, and only the part of its match that was not delivered yet is trimmed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import re2

from sapwood.detokenizer.regex_width import max_width
from sapwood.errors import InvalidRequest

WINDOW_CHARS = 2048
_MAX_PROGRAM_BYTES = 1 << 20
MAX_SEARCH_WORK = 2_500_000
"""Most instructions times characters that the patterns of one request may take for each text: at worst some ten milliseconds."""


class StopMatch(NamedTuple):
    """Characters [start, end) of the text that was searched; `stop` is the string or pattern as the client gave it."""

    start: int
    end: int
    stop: str


class StopMatcher:
    """Feed it text with `push` until `matched` is set; `finish` gives what was held back when the text ends."""

    def __init__(self, stop: Sequence[str] = (), stop_regex: Sequence[str] = (), keep_match: bool = False) -> None:
        """`keep_match` leaves the stop in the text. Raises InvalidRequest for a pattern that RE2 refuses."""
        self._strings = [_StringStop(text) for text in dict.fromkeys(stop)]
        self._regexes = [_RegexStop(pattern) for pattern in dict.fromkeys(stop_regex)]
        if sum(regex.search_work for regex in self._regexes) > MAX_SEARCH_WORK:
            raise InvalidRequest(
                "stop_regex takes too long to search; use fewer, shorter or less nested patterns", param="stop_regex"
            )
        self._keep_match = keep_match
        self._held = ""
        self.matched: str | None = None

    def push(self, text: str) -> str:
        """Takes the next text and returns what has become certain; after a match there is nothing more to push."""
        if not self._strings and not self._regexes:
            return text
        found = self._search(text)
        buffer, self._held = self._held + text, ""
        if found is not None:
            self.matched = found.stop
            return buffer[: max(0, found.end if self._keep_match else found.start)]
        certain = max(0, len(buffer) - self._chars_to_hold())
        self._held = buffer[certain:]
        return buffer[:certain]

    def finish(self) -> str:
        """The text held back for stops that never came."""
        held, self._held = self._held, ""
        return held

    def _search(self, text: str) -> StopMatch | None:
        """The winning match, with offsets into held + new text (below zero where it began in delivered text)."""
        num_held = len(self._held)
        by_string = [match for stop in self._strings if (match := stop.push(text)) is not None]
        by_regex = [match for stop in self._regexes if (match := stop.push(text)) is not None]
        first = [min(by_string, key=lambda match: (match.end, match.start))] if by_string else []
        found = min([*first, *by_regex], key=lambda match: match.start, default=None)
        return None if found is None else StopMatch(found.start + num_held, found.end + num_held, found.stop)

    def _chars_to_hold(self) -> int:
        return max([*(stop.num_pending for stop in self._strings), *(stop.num_held for stop in self._regexes)])


class _StringStop:
    """Knuth-Morris-Pratt over a stream: `num_pending` characters at the text's end are the longest beginning of the stop."""

    def __init__(self, stop: str) -> None:
        self._stop = stop
        self._fallback = _prefix_function(stop)
        self.num_pending = 0

    def push(self, text: str) -> StopMatch | None:
        """The first occurrence that ends in `text`; offsets count from the start of `text`."""
        stop, fallback, pending = self._stop, self._fallback, self.num_pending
        position = 0 if pending else text.find(stop[0])
        if position < 0:
            return None
        for index in range(position, len(text)):
            char = text[index]
            while pending and stop[pending] != char:
                pending = fallback[pending - 1]
            if stop[pending] == char:
                pending += 1
            if pending == len(stop):
                return StopMatch(index + 1 - pending, index + 1, stop)
        self.num_pending = pending
        return None


def _prefix_function(text: str) -> list[int]:
    """For each position the length of the longest proper beginning of `text` that ends there."""
    lengths = [0] * len(text)
    for index in range(1, len(text)):
        length = lengths[index - 1]
        while length and text[index] != text[length]:
            length = lengths[length - 1]
        lengths[index] = length + (text[index] == text[length])
    return lengths


class _RegexStop:
    """One compiled pattern and the tail of the text that a match may still begin in."""

    def __init__(self, pattern: str) -> None:
        self._pattern = pattern
        self._compiled = _compile(pattern)
        width = max_width(pattern)
        self._window = min(width, WINDOW_CHARS)
        self.search_work = self._compiled.programsize * self._window
        self.num_held = width - 1 if width <= WINDOW_CHARS else 0
        self._tail = ""

    def push(self, text: str) -> StopMatch | None:
        """The first match in the text so far; offsets count from the start of `text`."""
        if not text:
            return None
        searched = self._tail + text
        # One character before the window stays, so that ^ and \b see what stands before the window's first character.
        first = max(0, len(self._tail) - self._window)
        match = self._compiled.search(searched, first)
        if match is not None:
            return StopMatch(match.start() - len(self._tail), match.end() - len(self._tail), self._pattern)
        self._tail = searched[-(self._window + 1) :]
        return None


def _compile(pattern: str) -> Any:
    options = re2.Options()
    options.log_errors = False
    options.max_mem = _MAX_PROGRAM_BYTES
    try:
        compiled = re2.compile(pattern, options)
    except (re2.error, UnicodeEncodeError):
        raise InvalidRequest(
            f"stop_regex {pattern!r} is not a pattern that RE2 can use; "
            "look-around and back-references are not available, repetitions are limited to 1000",
            param="stop_regex",
        ) from None
    if compiled.search("") is not None:
        raise InvalidRequest(f"stop_regex {pattern!r} matches the empty text; make it need a character", param="stop_regex")
    return compiled
