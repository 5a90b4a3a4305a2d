"""gpt-oss's channels: analysis is reasoning, commentary to a function is a call, everything else that is said is content.

Reads messages of `<|channel|>…<|message|>…<|end|>`; knows no other format. Invariant: text outside of messages is content,
unchanged; a call of a function that was not offered is content too.
"""

from __future__ import annotations

import re

from sapwood.parsing.pieces import Piece, Tools, Writer
from sapwood.parsing.source import Source, SteppedParser, Steps

_START, _CHANNEL, _MESSAGE = "<|start|>", "<|channel|>", "<|message|>"
_ENDS = ("<|end|>", "<|call|>", "<|return|>")
_RECIPIENT = re.compile(r"\bto=functions\.(\S+?)(?=\s|<|$)")
_MAX_HEADER_CHARS = 1024


class HarmonyParser:
    """The answer that follows `<|start|>assistant`. `separates`: whether analysis is kept apart from content."""

    def __init__(self, tools: Tools, separates: bool = True) -> None:
        self._tools, self._separates = tools, separates
        self._num_chars = 0
        self._began: int | None = None
        self._parser = SteppedParser(self._read, tidies=True)

    @property
    def num_reasoning_chars(self) -> int:
        running = self._parser.source.num_read - self._began if self._began is not None else 0
        return self._num_chars + running

    def feed(self, text: str) -> list[Piece]:
        return self._parser.feed(text)

    def finish(self) -> list[Piece]:
        return self._parser.finish()

    def _read(self, source: Source, writer: Writer) -> Steps[None]:
        source.mark()
        yield from source.space()
        is_open = yield from source.literal("to=functions.")  # the prompt may have ended inside a header
        source.rewind()
        if is_open:
            yield from self._header(source, writer, "")
        while marker := (yield from source.until((_START, _CHANNEL, *_ENDS), writer.content)):
            if marker in (_START, _CHANNEL):
                yield from self._header(source, writer, marker)

    def _header(self, source: Source, writer: Writer, marker: str) -> Steps[None]:
        """What follows `marker`: a header and its message, or text that only looked like it."""
        began = source.num_read - len(marker)
        header, found = yield from source.before((_MESSAGE,), _MAX_HEADER_CHARS)
        if found:
            yield from self._message(source, writer, header if marker != _CHANNEL else _CHANNEL + header, began)
        else:
            writer.content(marker)

    def _message(self, source: Source, writer: Writer, header: str, began: int) -> Steps[None]:
        recipient = _RECIPIENT.search(header)
        channel = header.partition(_CHANNEL)[2].split(maxsplit=1)
        if recipient and recipient[1] in self._tools and (yield from source.peek()) in ("{", "<", ""):
            writer.call(recipient[1])
            if (yield from source.peek()) == "{":
                yield from source.json(writer.arguments)
            else:
                writer.arguments("{}")
            yield from source.until(_ENDS, writer.content)
        elif channel[:1] == ["analysis"] and self._separates:
            self._began = began
            yield from source.until(_ENDS, writer.reasoning)
            self._num_chars, self._began = self.num_reasoning_chars, None
        else:
            yield from source.until(_ENDS, writer.content)
