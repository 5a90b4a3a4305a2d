"""How models write calls of tools: one reader for each format whose arguments are JSON.

Each is a generator over a source; text that is not a call of an offered function is content, unchanged. Invariant: a call ends
where its JSON ends or breaks; what follows is text again.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial

from sapwood.parsing.call_object import Found, attempt, read_arguments, read_call_object, read_each
from sapwood.parsing.pieces import Tools, Writer
from sapwood.parsing.source import Source, Steps

ReadCalls = Callable[[Source, Writer, Tools], Steps[None]]
"""Reads a whole text in one format."""
_NAME_CHAR = re.compile(r"[^\s\[\]{}<>\"]")


def read_hermes(source: Source, writer: Writer, tools: Tools) -> Steps[None]:
    """`<tool_call>{…}</tool_call>`, as Hermes and Qwen write it; small Qwen models write the object alone, or in a code fence."""
    yield from _bare_objects(source, writer, tools, ",")
    while opening := (yield from source.until(("<tool_call>", "```json\n"), writer.content)):
        closing = "</tool_call>" if opening == "<tool_call>" else "```"
        yield from attempt(source, writer, opening, _closed(source, writer, tools, closing))


def read_strict_hermes(source: Source, writer: Writer, tools: Tools) -> Steps[None]:
    """Between the tags only, where a grammar can bind the arguments."""
    while opening := (yield from source.until(("<tool_call>",), writer.content)):
        yield from attempt(source, writer, opening, _closed(source, writer, tools, "</tool_call>"))


def _closed(source: Source, writer: Writer, tools: Tools, closing: str) -> Steps[Found]:
    """One or more objects, and the mark that closes them."""

    def has_more() -> Steps[bool]:
        yield from source.space()
        return not (yield from source.literal(closing)) and (yield from source.peek()) == "{"

    return read_each(source, partial(_object, source, writer, tools), has_more)


def _object(source: Source, writer: Writer, tools: Tools) -> Steps[Found]:
    yield from source.space()
    return (yield from read_call_object(source, writer, tools))


def read_llama3(source: Source, writer: Writer, tools: Tools) -> Steps[None]:
    """The object alone at the beginning, several with `;` between them, or after `<|python_tag|>`, as Llama 3 writes it."""
    yield from _bare_objects(source, writer, tools, ";")
    while opening := (yield from source.until(("<|python_tag|>",), writer.content)):
        yield from attempt(source, writer, opening, _separated(source, writer, tools, ";"))


def _bare_objects(source: Source, writer: Writer, tools: Tools, separator: str) -> Steps[None]:
    """Calls at the very beginning of the text."""
    yield from attempt(source, writer, "", _separated(source, writer, tools, separator))


def _separated(source: Source, writer: Writer, tools: Tools, separator: str) -> Steps[Found]:
    def has_more() -> Steps[bool]:
        yield from source.space()
        return (yield from source.literal(separator)) or (yield from source.peek()) == "{"

    return read_each(source, partial(_object, source, writer, tools), has_more)


def read_list(source: Source, writer: Writer, tools: Tools) -> Steps[None]:
    """`[{…}, {…}]` alone: what a forced call is constrained to, whatever the model's own format is."""
    yield from source.space()
    found = yield from attempt(source, writer, "", _list(source, writer, tools))
    if found is not Found.NOTHING:
        yield from source.space()
    yield from source.rest(writer.content)


def _list(source: Source, writer: Writer, tools: Tools) -> Steps[Found]:
    if not (yield from source.literal("[")):
        return Found.NOTHING
    return (yield from read_each(source, partial(_object, source, writer, tools), partial(has_more_items, source)))


def has_more_items(source: Source) -> Steps[bool]:
    """Step over the comma between two items of a list, or the bracket after the last."""
    yield from source.space()
    if (yield from source.literal(",")):
        return True
    yield from source.literal("]")
    return False


def read_mistral(source: Source, writer: Writer, tools: Tools) -> Steps[None]:
    """`[TOOL_CALLS]` and a list of objects, or a name, `[ARGS]` and the arguments, as Mistral's newer models write it."""
    while opening := (yield from source.until(("[TOOL_CALLS]",), writer.content)):
        yield from attempt(source, writer, opening, _mistral_call(source, writer, tools))


def _mistral_call(source: Source, writer: Writer, tools: Tools) -> Steps[Found]:
    yield from source.space()
    if (yield from source.peek()) == "[":
        return (yield from _list(source, writer, tools))
    name = yield from source.word(_NAME_CHAR)
    if name not in tools:
        return Found.NOTHING
    id = ""
    if (yield from source.literal("[CALL_ID]")):
        id = yield from source.word(_NAME_CHAR)
    yield from source.literal("[ARGS]")
    yield from source.space()
    return (yield from read_arguments(source, writer, name, id))


_DEEPSEEK_BEGIN, _DEEPSEEK_END = "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"
_DEEPSEEK_CALL, _DEEPSEEK_SEP, _DEEPSEEK_CALL_END = "<｜tool▁call▁begin｜>", "<｜tool▁sep｜>", "<｜tool▁call▁end｜>"


def read_deepseek(source: Source, writer: Writer, tools: Tools) -> Steps[None]:
    """DeepSeek's marks: V3 and R1 put the arguments in a code fence after the name, V3.1 writes name and arguments plainly."""
    while opening := (yield from source.until((_DEEPSEEK_BEGIN,), writer.content)):
        yield from attempt(source, writer, opening, _deepseek_calls(source, writer, tools))


def _deepseek_calls(source: Source, writer: Writer, tools: Tools) -> Steps[Found]:
    def has_more() -> Steps[bool]:
        yield from source.space()
        return not (yield from source.literal(_DEEPSEEK_END))

    return read_each(source, partial(_deepseek_call, source, writer, tools), has_more)


def _deepseek_call(source: Source, writer: Writer, tools: Tools) -> Steps[Found]:
    yield from source.space()
    if not (yield from source.literal(_DEEPSEEK_CALL)):
        return Found.NOTHING
    name, mark = yield from source.before((_DEEPSEEK_SEP,), 256)
    is_fenced = name.strip() == "function" and name.strip() not in tools
    if is_fenced:
        name, mark = yield from source.before(("\n",), 256)
    name = name.strip()
    if not mark or name not in tools:
        return Found.NOTHING
    if is_fenced:
        yield from source.literal("```json")
    yield from source.space()
    found = yield from read_arguments(source, writer, name)
    yield from source.space()
    if is_fenced and (yield from source.literal("```")):
        yield from source.space()
    yield from source.literal(_DEEPSEEK_CALL_END)
    return found


_KIMI_BEGIN, _KIMI_END = "<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"
_KIMI_CALL, _KIMI_ARGUMENTS, _KIMI_CALL_END = "<|tool_call_begin|>", "<|tool_call_argument_begin|>", "<|tool_call_end|>"


def read_kimi(source: Source, writer: Writer, tools: Tools) -> Steps[None]:
    """Kimi K2's marks; the id that the model gives, such as `functions.get_weather:0`, is kept, since its template expects it."""
    while opening := (yield from source.until((_KIMI_BEGIN,), writer.content)):
        yield from attempt(source, writer, opening, _kimi_calls(source, writer, tools))


def _kimi_calls(source: Source, writer: Writer, tools: Tools) -> Steps[Found]:
    def has_more() -> Steps[bool]:
        yield from source.space()
        return not (yield from source.literal(_KIMI_END))

    return read_each(source, partial(_kimi_call, source, writer, tools), has_more)


def _kimi_call(source: Source, writer: Writer, tools: Tools) -> Steps[Found]:
    yield from source.space()
    if not (yield from source.literal(_KIMI_CALL)):
        return Found.NOTHING
    id, mark = yield from source.before((_KIMI_ARGUMENTS,), 256)
    id = id.strip()
    name = id.removeprefix("functions.").rpartition(":")[0] or id
    if not mark or name not in tools:
        return Found.NOTHING
    yield from source.space()
    found = yield from read_arguments(source, writer, name, id)
    yield from source.space()
    yield from source.literal(_KIMI_CALL_END)
    return found
