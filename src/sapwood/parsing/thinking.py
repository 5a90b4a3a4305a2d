"""Reasoning between tags at the beginning of a text, apart from the answer after it.

Knows tags only. Invariant: without a tag, and where the prompt opened none, the text is content, unchanged; white space around
tags is nobody's.
"""

from __future__ import annotations

from dataclasses import dataclass

from sapwood.parsing.pieces import Content, Piece, Writer
from sapwood.parsing.source import Source, SteppedParser, Steps


@dataclass(frozen=True, slots=True)
class ThinkTags:
    """The tags of a family of models. `is_implied`: what they write is reasoning from the start, even without the first tag."""

    start: str
    end: str
    is_implied: bool = False


class ThinkParser:
    """A text that may begin with reasoning; `begins_inside`: the prompt has opened it."""

    def __init__(self, tags: ThinkTags, begins_inside: bool) -> None:
        self._tags, self._begins_inside = tags, begins_inside
        self._end: int | None = None
        self._is_inside = False
        self._parser = SteppedParser(self._read, tidies=False)

    @property
    def num_reasoning_chars(self) -> int:
        if self._end is not None:
            return self._end
        return self._parser.source.num_read if self._is_inside else 0

    def feed(self, text: str) -> list[Piece]:
        return self._parser.feed(text)

    def finish(self) -> list[Piece]:
        return self._parser.finish()

    def _read(self, source: Source, writer: Writer) -> Steps[None]:
        source.mark()
        yield from source.space()
        if (yield from source.literal(self._tags.start)) or self._begins_inside:
            source.release()
            self._is_inside = True
            yield from source.space()
            if (yield from source.until((self._tags.end,), writer.reasoning)):
                self._end = source.num_read
                yield from source.space()
            else:
                self._end = source.num_read
        else:
            source.rewind()
            self._end = 0
        yield from source.rest(writer.content)


class Then:
    """One parser after another: the second takes the first one's content apart."""

    def __init__(self, first: ThinkParser, second: SteppedParser) -> None:
        self._first, self._second = first, second

    @property
    def num_reasoning_chars(self) -> int:
        return self._first.num_reasoning_chars

    def feed(self, text: str) -> list[Piece]:
        return self._pass_on(self._first.feed(text))

    def finish(self) -> list[Piece]:
        return [*self._pass_on(self._first.finish()), *self._second.finish()]

    def _pass_on(self, pieces: list[Piece]) -> list[Piece]:
        passed: list[Piece] = []
        for piece in pieces:
            passed += self._second.feed(piece.text) if isinstance(piece, Content) else [piece]
        return passed
