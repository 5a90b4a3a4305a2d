"""A call written as a JSON object, `{"name": …, "arguments": {…}}`, which many formats have in common.

Reads it from a source and hands it on while it is being written. Invariant: nothing is handed on before it is certain that a
function that was offered is called; after that the arguments go out as they come.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from enum import Enum

from sapwood.parsing.pieces import Tools, Writer
from sapwood.parsing.source import Source, Steps

ARGUMENTS = ("arguments", "parameters")


class Found(Enum):
    """What stood where a call might: NOTHING, a whole CALL, or one that BROKE off after it had begun."""

    NOTHING = "nothing"
    CALL = "call"
    BROKEN = "broken"


class _Held:
    """What is known of a call before it is certain: its name, and arguments that came before the name."""

    def __init__(self, tools: Tools, writer: Writer, id: str) -> None:
        self._tools, self._writer, self._id = tools, writer, id
        self._name: str | None = None
        self._arguments: str | None = None
        self.has_begun = self.has_arguments = False

    @property
    def has_name(self) -> bool:
        return self._name is not None

    def take_name(self, text: str) -> bool:
        """The name's JSON text; returns whether the call is still possible."""
        name = json.loads(text) if text.startswith('"') else None
        if not isinstance(name, str) or name not in self._tools:
            return False
        self._name = name
        if self._arguments is not None:
            self.begin()
        return True

    def take_arguments(self, text: str) -> bool:
        """Whole arguments, perhaps as a text that holds JSON or null, as some models write them."""
        value: object = json.loads(text) if text else None
        if isinstance(value, str):
            text, value = value, _as_json(value)
        if text and value is None:
            text, value = "{}", {}
        self._arguments, self.has_arguments = text, True
        if isinstance(value, dict) and self.has_name:
            self.begin()
        return isinstance(value, dict)

    def begin(self) -> None:
        """Now it is certain."""
        assert self._name is not None
        self.has_begun = self.has_arguments = True
        self._writer.call(self._name, self._id)
        self._writer.arguments(self._arguments or "")

    def end(self) -> Found:
        """The object is whole; without arguments it calls a function that needs none."""
        if not self.has_begun and self.has_name:
            self._arguments = self._arguments or "{}"
            self.begin()
        return Found.CALL if self.has_begun else Found.NOTHING


def attempt(source: Source, writer: Writer, opening: str, body: Steps[Found]) -> Steps[Found]:
    """Read `body` after `opening`, which was stepped over already; where there is no call, both are text."""
    source.mark()
    found = yield from body
    if found is Found.NOTHING:
        source.rewind()
        writer.content(opening)
    else:
        source.release()
    return found


def read_each(source: Source, read: Callable[[], Steps[Found]], has_more: Callable[[], Steps[bool]]) -> Steps[Found]:
    """Calls one after another, inside of an `attempt`; `has_more` steps over what stands between two, or after the last."""
    first = Found.NOTHING
    while True:
        found = yield from read()
        if found is not Found.CALL:
            if first is Found.CALL and found is Found.NOTHING:
                source.rewind()
                return first
            return found
        first = found
        source.mark()
        if not (yield from has_more()):
            return first


def read_call_object(source: Source, writer: Writer, tools: Tools, id: str = "") -> Steps[Found]:
    """One call at this place of the text."""
    held = _Held(tools, writer, id)
    is_whole = yield from _members(source, writer, held)
    if is_whole:
        return held.end()
    return Found.BROKEN if held.has_begun else Found.NOTHING


def _members(source: Source, writer: Writer, held: _Held) -> Steps[bool]:
    if not (yield from source.literal("{")):
        return False
    while True:
        yield from source.space()
        key = (yield from source.json_text()) if (yield from source.peek()) == '"' else ""
        yield from source.space()
        if not key or not (yield from source.literal(":")):
            return False
        yield from source.space()
        if not (yield from _member(source, writer, held, json.loads(key))):
            return False
        yield from source.space()
        if (yield from source.literal("}")):
            return True
        if not (yield from source.literal(",")):
            return False


def _member(source: Source, writer: Writer, held: _Held, key: str) -> Steps[bool]:
    if key == "name" and not held.has_name:
        text = yield from source.json_text()
        return held.take_name(text)
    if key in ARGUMENTS and not held.has_arguments:
        if held.has_name and (yield from source.peek()) == "{":
            held.begin()
            return (yield from source.json(writer.arguments))
        text = yield from source.json_text()
        return held.take_arguments(text)
    return bool((yield from source.json_text()))


def read_arguments(source: Source, writer: Writer, name: str, id: str = "") -> Steps[Found]:
    """The arguments object of a call whose name is known, and known to be offered."""
    if (yield from source.peek()) != "{":
        return Found.NOTHING
    writer.call(name, id)
    return Found.CALL if (yield from source.json(writer.arguments)) else Found.BROKEN


def _as_json(text: str) -> object:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text
