"""Calls whose arguments are written one by one between tags, as GLM and Qwen3-Coder do; they become one JSON object.

Knows the two formats and the arguments' schemas. Invariant: an argument goes out when its closing tag has come; what is handed on
joins to valid JSON when the call is whole.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from sapwood.grammar.plain_values import ANY, OPAQUE, kinds_of, read_plain
from sapwood.parsing.call_object import Found, attempt
from sapwood.parsing.pieces import Tools, Writer
from sapwood.parsing.source import Source, Steps

_MAX_ARGUMENT_CHARS = 1 << 20


def read_glm(source: Source, writer: Writer, tools: Tools) -> Steps[None]:
    """`<tool_call>name`, then `<arg_key>k</arg_key><arg_value>v</arg_value>` for each argument, `</tool_call>`."""
    while opening := (yield from source.until(("<tool_call>",), writer.content)):
        yield from attempt(source, writer, opening, _glm_call(source, writer, tools))


def _glm_call(source: Source, writer: Writer, tools: Tools) -> Steps[Found]:
    name, mark = yield from source.before(("\n", "<arg_key>", "</tool_call>"), 256)
    name = name.strip()
    if not mark or name not in tools:
        return Found.NOTHING
    writer.call(name)
    arguments = _Arguments(writer, tools[name])
    while True:
        yield from source.space()
        if mark == "</tool_call>" or (mark != "<arg_key>" and (yield from source.literal("</tool_call>"))):
            return arguments.end()
        if mark != "<arg_key>" and not (yield from source.literal("<arg_key>")):
            return Found.BROKEN
        key, mark = yield from source.before(("</arg_key>",), 256)
        yield from source.space()
        if not mark or not (yield from source.literal("<arg_value>")):
            return Found.BROKEN
        value, mark = yield from _value(source, arguments.kinds(key.strip()), "</arg_value>")
        if not mark:
            return Found.BROKEN
        arguments.add(key.strip(), value)


def read_qwen3_coder(source: Source, writer: Writer, tools: Tools) -> Steps[None]:
    """`<tool_call><function=name>`, then `<parameter=k>` and a value on lines of its own, `</function></tool_call>`; the models
    leave out the first tag now and then."""
    while opening := (yield from source.until(("<tool_call>", "<function="), writer.content)):
        yield from attempt(source, writer, opening, _qwen3_coder_call(source, writer, tools, opening == "<function="))


def read_strict_qwen3_coder(source: Source, writer: Writer, tools: Tools) -> Steps[None]:
    """With the first tag only, where a grammar can bind the arguments."""
    while opening := (yield from source.until(("<tool_call>",), writer.content)):
        yield from attempt(source, writer, opening, _qwen3_coder_call(source, writer, tools, False))


def _qwen3_coder_call(source: Source, writer: Writer, tools: Tools, is_begun: bool) -> Steps[Found]:
    if not is_begun:
        yield from source.space()
        if not (yield from source.literal("<function=")):
            return Found.NOTHING
    name, mark = yield from source.before((">",), 256)
    if not mark or name not in tools:
        return Found.NOTHING
    writer.call(name)
    arguments = _Arguments(writer, tools[name])
    while True:
        yield from source.space()
        if (yield from source.literal("</function>")):
            yield from source.space()
            yield from source.literal("</tool_call>")
            return arguments.end()
        if not (yield from source.literal("<parameter=")):
            return Found.BROKEN
        key, mark = yield from source.before((">",), 256)
        value, closing = yield from _value(source, arguments.kinds(key), "</parameter>")
        if not mark or not closing:
            return Found.BROKEN
        arguments.add(key, value.removeprefix("\n").removesuffix("\n"))


def _value(source: Source, kinds: frozenset[str], mark: str) -> Steps[tuple[str, str]]:
    """The text of a value and the mark after it, which does not count inside of a string of JSON."""
    value, found = yield from source.before((mark,), _MAX_ARGUMENT_CHARS)
    while found and not kinds & {"string", ANY, OPAQUE} and _ends_in_string(value):
        more, is_there = yield from source.before((mark,), _MAX_ARGUMENT_CHARS)
        if not is_there:
            break
        value += mark + more
    return value, found


def _ends_in_string(text: str) -> bool:
    try:
        json.loads(text)
    except json.JSONDecodeError as error:
        return error.msg.startswith("Unterminated string")
    except (ValueError, RecursionError):
        return False
    return False


class _Arguments:
    """Writes arguments as the members of one object."""

    def __init__(self, writer: Writer, schema: Mapping[str, Any]) -> None:
        self._writer, self._separator = writer, "{"
        self._schema = schema
        properties = schema.get("properties")
        self._properties: Mapping[str, Any] = properties if isinstance(properties, Mapping) else {}
        self._keys: set[str] = set()

    def kinds(self, key: str) -> frozenset[str]:
        """The kinds of values that the argument may have."""
        return kinds_of(self._properties.get(key, self._schema.get("additionalProperties", True)), self._schema)

    def add(self, key: str, value: str) -> None:
        """An argument: a text where the schema says so, else JSON if it is that; of two with one name the first counts."""
        if key in self._keys:
            return
        self._keys.add(key)
        text = json.dumps(read_plain(value, self.kinds(key)), ensure_ascii=False)
        self._writer.arguments(f"{self._separator}{json.dumps(key, ensure_ascii=False)}: {text}")
        self._separator = ", "

    def end(self) -> Found:
        self._writer.arguments("}" if self._keys else "{}")
        return Found.CALL
