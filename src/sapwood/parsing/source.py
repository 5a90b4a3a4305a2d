"""A text that is still arriving, read by a generator that pauses where it needs more of it.

Owns the buffer and the place in it; knows no format. Invariant: what a reader gets depends on the text alone, never on where its
chunks were cut; whatever was read since `mark` can be read again.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Generator, Sequence
from typing import TypeVar

from sapwood.parsing.json_scanner import JsonScanner
from sapwood.parsing.pieces import Piece, Writer, draw_id

T = TypeVar("T")
Steps = Generator[None, None, T]
"""A reader: it yields to wait for more text, and returns what it was asked for."""
_NO_SPACE = re.compile(r"\S")


class Source:
    """The text. `num_read` counts characters from its beginning."""

    def __init__(self) -> None:
        self._text = ""
        self._place = 0
        self._mark: int | None = None
        self._num_dropped = 0
        self.has_ended = False

    @property
    def num_read(self) -> int:
        return self._num_dropped + self._place

    def add(self, text: str) -> None:
        """More text has come."""
        keep = self._place if self._mark is None else self._mark
        self._text = self._text[keep:] + text
        self._place -= keep
        self._num_dropped += keep
        if self._mark is not None:
            self._mark = 0

    def mark(self) -> None:
        """Keep what is read from here on."""
        self._mark = self._place

    def rewind(self) -> None:
        """Go back to the mark, and take it away."""
        assert self._mark is not None
        self._place, self._mark = self._mark, None

    def release(self) -> None:
        """Take the mark away."""
        self._mark = None

    def peek(self) -> Steps[str]:
        """The next character; "" at the end of the text."""
        while self._place == len(self._text) and not self.has_ended:
            yield
        return self._text[self._place : self._place + 1]

    def literal(self, text: str) -> Steps[bool]:
        """Step over `text` if it comes next."""
        while True:
            part = self._text[self._place : self._place + len(text)]
            if part == text:
                self._place += len(text)
                return True
            if self.has_ended or not text.startswith(part):
                return False
            yield

    def space(self) -> Steps[None]:
        """Step over white space."""
        while True:
            found = _NO_SPACE.search(self._text, self._place)
            self._place = found.start() if found else len(self._text)
            if found or self.has_ended:
                return
            yield

    def until(self, markers: Sequence[str], emit: Callable[[str], None]) -> Steps[str]:
        """Hand on the text before the first of `markers` and step over that; "" when the text ends without one.

        No marker may be part of another.
        """
        while True:
            places = [(place, marker) for marker in markers if (place := self._text.find(marker, self._place)) >= 0]
            if places:
                place, marker = min(places)
                emit(self._text[self._place : place])
                self._place = place + len(marker)
                return marker
            end = len(self._text) if self.has_ended else len(self._text) - self._num_held(markers)
            emit(self._text[self._place : end])
            self._place = end
            if self.has_ended:
                return ""
            yield

    def before(self, markers: Sequence[str], max_chars: int = 1 << 16) -> Steps[tuple[str, str]]:
        """The text before the first of `markers`, and that, both stepped over; "" for it if none comes in `max_chars`."""
        start = self._num_dropped + self._place
        while True:
            places = [(place, marker) for marker in markers if (place := self._text.find(marker, self._place)) >= 0]
            place, marker = min(places) if places else (len(self._text), "")
            waited = start - self._num_dropped
            if place - waited > max_chars + (0 if marker else max(map(len, markers))):
                return self._text[waited : waited + max_chars], ""
            if marker or self.has_ended:
                self._place = place + len(marker) if marker else self._place
                return self._text[waited:place], marker
            yield

    def word(self, pattern: re.Pattern[str]) -> Steps[str]:
        """The longest run of characters that `pattern`, which matches single ones, accepts."""
        chars: list[str] = []
        while (char := (yield from self.peek())) and pattern.fullmatch(char):
            chars.append(char)
            self._place += 1
        return "".join(chars)

    def json(self, emit: Callable[[str], None]) -> Steps[bool]:
        """Hand on one JSON value as it comes; returns whether it was whole and valid."""
        scanner = JsonScanner()
        while True:
            self._place, text = scanner.feed(self._text, self._place)
            emit(text)
            if scanner.is_done or scanner.has_failed:
                return scanner.is_done
            if self.has_ended:
                return scanner.finish()
            yield

    def json_text(self) -> Steps[str]:
        """One JSON value; "" when there is none."""
        parts: list[str] = []
        return "".join(parts) if (yield from self.json(parts.append)) else ""

    def rest(self, emit: Callable[[str], None]) -> Steps[None]:
        """Hand on everything to the end."""
        yield from self.until((), emit)

    def _num_held(self, markers: Sequence[str]) -> int:
        """How many characters at the end may begin a marker."""
        longest = max(map(len, markers), default=1) - 1
        for length in range(min(longest, len(self._text) - self._place), 0, -1):
            tail = self._text[-length:]
            if any(marker.startswith(tail) for marker in markers):
                return length
        return 0


class SteppedParser:
    """A parser whose reader is a generator function of a source and a writer."""

    def __init__(self, read: Callable[[Source, Writer], Steps[None]], tidies: bool, draw_id: Callable[[], str] = draw_id) -> None:
        self.source, self._writer = Source(), Writer(tidies, draw_id)
        self._steps = read(self.source, self._writer)
        next(self._steps, None)

    @property
    def num_reasoning_chars(self) -> int:
        return 0

    def feed(self, text: str) -> list[Piece]:
        self.source.add(text)
        next(self._steps, None)
        return self._writer.take()

    def finish(self) -> list[Piece]:
        self.source.has_ended = True
        next(self._steps, None)
        self._writer.finish()
        return self._writer.take()
