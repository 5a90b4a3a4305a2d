"""Calls whose arguments are written one by one between tags, as GLM and Qwen3-Coder do; they become one JSON object.

Knows the two formats and the arguments' schemas. Invariant: an argument goes out when its closing tag has come; what is handed on
joins to valid JSON when the call is whole.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

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
        value, mark = yield from source.before(("</arg_value>",), _MAX_ARGUMENT_CHARS)
        if not mark:
            return Found.BROKEN
        arguments.add(key.strip(), value)


def read_qwen3_coder(source: Source, writer: Writer, tools: Tools) -> Steps[None]:
    """`<tool_call><function=name>`, then `<parameter=k>` and a value on lines of its own, `</function></tool_call>`."""
    while opening := (yield from source.until(("<tool_call>",), writer.content)):
        yield from attempt(source, writer, opening, _qwen3_coder_call(source, writer, tools))


def _qwen3_coder_call(source: Source, writer: Writer, tools: Tools) -> Steps[Found]:
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
        value, closing = yield from source.before(("</parameter>",), _MAX_ARGUMENT_CHARS)
        if not mark or not closing:
            return Found.BROKEN
        arguments.add(key, value.removeprefix("\n").removesuffix("\n"))


class _Arguments:
    """Writes arguments as the members of one object."""

    def __init__(self, writer: Writer, schema: Mapping[str, Any]) -> None:
        self._writer, self._separator = writer, "{"
        properties = schema.get("properties")
        self._properties: Mapping[str, Any] = properties if isinstance(properties, Mapping) else {}
        self._keys: set[str] = set()

    def add(self, key: str, value: str) -> None:
        """An argument: a text where the schema says so, else JSON if it is that; of two with one name the first counts."""
        if key in self._keys:
            return
        self._keys.add(key)
        text = json.dumps(self._typed(key, value), ensure_ascii=False)
        self._writer.arguments(f"{self._separator}{json.dumps(key, ensure_ascii=False)}: {text}")
        self._separator = ", "

    def end(self) -> Found:
        self._writer.arguments("}" if self._keys else "{}")
        return Found.CALL

    def _typed(self, key: str, value: str) -> Any:
        schema = self._properties.get(key)
        if isinstance(schema, Mapping) and schema.get("type") == "string":
            return value
        try:
            return json.loads(value, parse_constant=_refuse_constant)
        except (ValueError, RecursionError):
            return value


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")
