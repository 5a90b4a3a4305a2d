"""What a text is made of: content, reasoning and calls of tools, in the order in which the model wrote them.

Owns the vocabulary between parsers and dialects; knows no format. Invariant: a call's arguments follow its start, with its index,
and calls are numbered from 0 without gaps.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

Tools = Mapping[str, Mapping[str, Any]]
"""The functions that may be called: name to the JSON schema of its arguments."""


@dataclass(frozen=True, slots=True)
class Content:
    """Text for the reader."""

    text: str


@dataclass(frozen=True, slots=True)
class Reasoning:
    """Text that the model thought before it answered."""

    text: str


@dataclass(frozen=True, slots=True)
class CallStart:
    """The model calls a function."""

    index: int
    id: str
    name: str


@dataclass(frozen=True, slots=True)
class CallArguments:
    """More of the arguments of a call; joined they are one JSON object, unless the text ended too early or was not JSON."""

    index: int
    text: str


Piece = Content | Reasoning | CallStart | CallArguments


class Parser(Protocol):
    """Takes a text apart while it arrives. Joined pieces do not depend on how the text was cut into chunks."""

    @property
    def num_reasoning_chars(self) -> int:
        """How many characters of the text so far belong to reasoning, the marks around it included."""
        ...

    def feed(self, text: str) -> list[Piece]:
        """The pieces that are certain after `text`."""
        ...

    def finish(self) -> list[Piece]:
        """The rest, at the end of the text."""
        ...


class PlainText:
    """The null twin: all text is content."""

    num_reasoning_chars = 0

    def feed(self, text: str) -> list[Piece]:
        return [Content(text)] if text else []

    def finish(self) -> list[Piece]:
        return []


@dataclass(slots=True)
class Call:
    """A whole call; `arguments` is JSON text."""

    id: str
    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class Answer:
    """A whole text, taken apart; empty texts where there is nothing."""

    content: str
    reasoning: str
    calls: list[Call]


def join(pieces: Iterable[Piece]) -> Answer:
    """The pieces of one text put together."""
    content, reasoning = [], []
    calls: list[Call] = []
    for piece in pieces:
        match piece:
            case Content(text):
                content.append(text)
            case Reasoning(text):
                reasoning.append(text)
            case CallStart(_, id, name):
                calls.append(Call(id, name, ""))
            case CallArguments(index, text):
                calls[index].arguments += text
    return Answer("".join(content), "".join(reasoning), calls)


def merge(pieces: Iterable[Piece]) -> list[Piece]:
    """The same with neighbours that belong together made one."""
    merged: list[Piece] = []
    for piece in pieces:
        match merged[-1] if merged else None, piece:
            case (Content(before), Content(text)):
                merged[-1] = Content(before + text)
            case (Reasoning(before), Reasoning(text)):
                merged[-1] = Reasoning(before + text)
            case (CallArguments(index, before), CallArguments(_, text)):
                merged[-1] = CallArguments(index, before + text)
            case _:
                merged.append(piece)
    return merged


def parse(parser: Parser, text: str) -> Answer:
    """The whole `text` at once, by a fresh parser."""
    return join([*parser.feed(text), *parser.finish()])


def draw_id() -> str:
    """A new call's id, as OpenAI's look."""
    return f"call_{uuid.uuid4().hex[:24]}"


def draw_short_id() -> str:
    """A new call's id where templates insist on nine letters and digits."""
    return uuid.uuid4().hex[:9]


class Writer:
    """Collects pieces for whoever asks next; `tidies`: white space beside calls is nobody's text and is left out."""

    def __init__(self, tidies: bool = False, draw_id: Callable[[], str] = draw_id) -> None:
        self._tidies, self._draw_id = tidies, draw_id
        self._pieces: list[Piece] = []
        self._space = ""
        self._reasoning_space = ""
        self._num_calls = 0
        self._follows_call = False

    def content(self, text: str) -> None:
        """More text for the reader."""
        if not self._tidies:
            self._add_content(text)
            return
        if self._follows_call:
            text = text.lstrip()
        if text:
            self._follows_call = False
            text = self._space + text
            kept = text.rstrip()
            self._space = text[len(kept) :]
            self._add_content(kept)

    def reasoning(self, text: str) -> None:
        """More reasoning; white space at its end is left out."""
        text = self._reasoning_space + text
        kept = text.rstrip()
        self._reasoning_space = text[len(kept) :]
        if kept:
            self._pieces.append(Reasoning(kept))

    def call(self, name: str, id: str = "") -> None:
        """A call begins."""
        self._space = ""
        self._follows_call = True
        self._pieces.append(CallStart(self._num_calls, id or self._draw_id(), name))
        self._num_calls += 1

    def arguments(self, text: str) -> None:
        """More of the latest call's arguments."""
        if text:
            self._pieces.append(CallArguments(self._num_calls - 1, text))

    def finish(self) -> None:
        """The text has ended: white space that was held back belongs to it."""
        self._add_content(self._space)
        self._space = ""

    def take(self) -> list[Piece]:
        """Everything since the last time."""
        taken, self._pieces = self._pieces, []
        return taken

    def _add_content(self, text: str) -> None:
        if text:
            self._pieces.append(Content(text))
