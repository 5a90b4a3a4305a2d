"""Calls written as a Python list, `[get_weather(city="Paris"), now()]`, as Llama 3.2, Llama 4 and LFM2 write them.

Reads Python's grammar with `ast` and takes literals only; nothing is ever evaluated. Invariant: a call goes out, whole, when its
parenthesis closes; one that is anything but an offered name with literal keyword arguments is text.
"""

from __future__ import annotations

import ast
import json
import re
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

from sapwood.parsing.call_object import Found, attempt, read_each
from sapwood.parsing.pieces import Tools, Writer
from sapwood.parsing.source import Source, Steps
from sapwood.parsing.tool_formats import has_more_items

_NAME_CHAR = re.compile(r"[\w.\-]")
_JSON_NAMES = {"true": True, "false": False, "null": None}
_MAX_CALL_CHARS = 1 << 16
_CLOSERS = {"(": ")", "[": "]", "{": "}"}


def read_pythonic(source: Source, writer: Writer, tools: Tools) -> Steps[None]:
    """A list at the beginning of the text, or after `<|python_start|>`."""
    return _read(source, writer, partial(_list, source, writer, tools))


def read_exact_pythonic(source: Source, writer: Writer, tools: Tools) -> Steps[None]:
    """The same, but only as it is written by the rules: without white space before the first name."""
    return _read(source, writer, partial(_exact_list, source, writer, tools))


def _read(source: Source, writer: Writer, read_list: Callable[[], Steps[Found]]) -> Steps[None]:
    yield from attempt(source, writer, "", read_list())
    while opening := (yield from source.until(("<|python_start|>",), writer.content)):
        yield from attempt(source, writer, opening, read_list())


def _list(source: Source, writer: Writer, tools: Tools) -> Steps[Found]:
    yield from source.space()
    if not (yield from source.literal("[")):
        return Found.NOTHING
    yield from source.space()
    return (yield from _calls(source, writer, tools))


def _exact_list(source: Source, writer: Writer, tools: Tools) -> Steps[Found]:
    return (yield from _calls(source, writer, tools)) if (yield from source.literal("[")) else Found.NOTHING


def _calls(source: Source, writer: Writer, tools: Tools) -> Steps[Found]:
    """What follows the opening bracket."""

    def has_more() -> Steps[bool]:
        has_comma = yield from has_more_items(source)
        yield from source.space()
        return has_comma

    found = yield from read_each(source, partial(_call, source, writer, tools), has_more)
    if found is Found.CALL:
        yield from source.literal("<|python_end|>")
    return found


def _call(source: Source, writer: Writer, tools: Tools) -> Steps[Found]:
    name = yield from source.word(_NAME_CHAR)
    arguments = (yield from _arguments(source)) if name in tools else None
    if arguments is None:
        return Found.NOTHING
    writer.call(name)
    writer.arguments(json.dumps(arguments, ensure_ascii=False))
    return Found.CALL


def _arguments(source: Source) -> Steps[dict[str, Any] | None]:
    """What stands between a pair of parentheses, as an object; None when it is not what it should be."""
    if (yield from source.peek()) != "(":
        return None
    text = yield from _balanced(source)
    if not text:
        return None
    try:
        with warnings.catch_warnings(action="ignore"):  # of odd escapes in the model's strings
            call = ast.parse(f"f{text}", mode="eval").body
        if not isinstance(call, ast.Call) or call.args or not isinstance(call.func, ast.Name):
            return None
        arguments = {str(keyword.arg): _literal(keyword.value) for keyword in call.keywords if keyword.arg is not None}
        json.dumps(arguments, allow_nan=False).encode()
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return None
    return arguments if len(arguments) == len(call.keywords) else None


def _balanced(source: Source) -> Steps[str]:
    """From an opening bracket to the one that closes it; "" when none does. Strings may hold brackets."""
    chars: list[str] = []
    closers: list[str] = []
    quote, is_escaped = "", False
    while len(chars) < _MAX_CALL_CHARS:
        char = yield from source.peek()
        if not char or not (yield from source.literal(char)):
            return ""
        chars.append(char)
        if quote:
            if not is_escaped and char == quote:
                quote = ""
            is_escaped = char == "\\" and not is_escaped
        elif char in "'\"":
            quote = char
        elif char in _CLOSERS:
            closers.append(_CLOSERS[char])
        elif char in ")]}":
            if char != closers.pop():
                return ""
            if not closers:
                return "".join(chars)
    return ""


def _literal(node: ast.expr) -> Any:
    """The JSON value of a literal; raises ValueError for anything else."""
    match node:
        case ast.Constant(str(value)):  # halves of a pair, as JSON may spell a character, are put together
            return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
        case ast.Constant(value) if value is None or isinstance(value, (bool, int, float)):
            return value
        case ast.Name(id) if id in _JSON_NAMES:
            return _JSON_NAMES[id]
        case ast.UnaryOp(ast.USub(), ast.Constant(value)) if isinstance(value, (int, float)) and not isinstance(value, bool):
            return -value
        case ast.List(items) | ast.Tuple(items):
            return [_literal(item) for item in items]
        case ast.Dict(keys, values) if all(isinstance(key, ast.Constant) and isinstance(key.value, str) for key in keys):
            return {str(_literal(key)): _literal(value) for key, value in zip(keys, values, strict=True) if key is not None}
    raise ValueError("not a literal")
