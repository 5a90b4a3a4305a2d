"""How calls are written when a grammar binds their arguments: for each format a structural tag, and who reads such calls.

Owns the texts around arguments; compiles nothing. Invariant: what the reader takes for a call, the tag has bound. Where calls
need no mark before them (Llama, Python-like lists), they count at the very beginning and in one spelling only.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from sapwood.errors import InvalidRequest
from sapwood.parsing.call_object import Found, attempt, read_arguments, read_each
from sapwood.parsing.pieces import Tools, Writer
from sapwood.parsing.pythonic import read_exact_pythonic
from sapwood.parsing.source import Source, Steps
from sapwood.parsing.tagged_arguments import read_strict_qwen3_coder
from sapwood.parsing.tool_formats import ReadCalls, read_strict_hermes

Form = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Rest:
    """What there is besides the arguments: several calls or one at most; free text before and after them, or instead of them
    the `answer`, a form of its own."""

    is_parallel: bool = True
    answer: Form | None = None


Write = Callable[[Tools, Rest], Form]
"""Makes the `format` of a structural tag for functions with the schemas that bind them."""

_ANY: Form = {"type": "any_text"}
_SPACE = (" ", "\n", "\t", "\r")
"""A text that may be a call only at its beginning does not begin with these, so that a call is not missed."""


def _hermes(tools: Tools, rest: Rest) -> Form:
    tags = [_tag(f'<tool_call>\n{{"name": "{name}", "arguments": ', _by(tools[name]), "}\n</tool_call>") for name in tools]
    return _marked("<tool_call>", tags, rest, "\n")


def _mistral(tools: Tools, rest: Rest) -> Form:
    """By name, as newer models write it, or a list of objects."""
    mark = "[TOOL_CALLS]"
    id = _sequence(_text("[CALL_ID]"), {"type": "regex", "pattern": "[A-Za-z0-9]{9}"})
    named = [_tag(mark + name, _sequence(_either(id, _text("")), _text("[ARGS]"), _by(tools[name])), "") for name in tools]
    objects = _several(
        [_tag(f'{{"name": "{name}", "arguments": ', _by(tools[name]), "}") for name in tools], ", ", rest.is_parallel
    )
    return _marked(mark, [*named, _tag(mark + "[", objects, "]"), _tag(mark + " [", objects, "]")], rest)


def _deepseek(tools: Tools, rest: Rest) -> Form:
    """V3.1's calls, and those of V3 and R1, whose arguments are in a code fence."""
    begin, end = "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"
    call, sep, call_end = "<｜tool▁call▁begin｜>", "<｜tool▁sep｜>", "<｜tool▁call▁end｜>"
    plain = [_tag(f"{call}{name}{sep}", _by(tools[name]), call_end) for name in tools]
    fenced = [_tag(f"{call}function{sep}{name}\n```json\n", _by(tools[name]), f"\n```{call_end}") for name in tools]
    sections = [
        _tag(begin, _several(plain, "", rest.is_parallel), end),
        _tag(begin, _several(fenced, "\n", rest.is_parallel), end),
    ]
    return _marked(begin, sections, rest)


def _kimi(tools: Tools, rest: Rest) -> Form:
    begin = "<|tool_calls_section_begin|>"
    number = _sequence({"type": "regex", "pattern": "[0-9]{1,4}"}, _text("<|tool_call_argument_begin|>"))
    calls = [
        _tag(f"<|tool_call_begin|>functions.{name}:", _sequence(number, _by(tools[name])), "<|tool_call_end|>") for name in tools
    ]
    return _marked(begin, [_tag(begin, _several(calls, "", rest.is_parallel), "<|tool_calls_section_end|>")], rest)


def _glm(tools: Tools, rest: Rest) -> Form:
    line = _either(_text("\n"), _text(""))
    tags = [_tag(f"<tool_call>{name}", _sequence(line, _by(tools[name], "glm_xml")), "</tool_call>") for name in tools]
    return _marked("<tool_call>", tags, rest, "\n")


def _qwen3_coder(tools: Tools, rest: Rest) -> Form:
    before, after = "<tool_call>\n<function=%s>\n", "</function>\n</tool_call>"
    tags = [_tag(before % name, _by(tools[name], "qwen_xml"), after) for name in tools]
    return _marked("<tool_call>", tags, rest, "\n")


_LLAMA_CALLS = (
    '{"name": "%s", "parameters": ',
    '{"type": "function", "name": "%s", "parameters": ',
    '{"name":"%s","parameters":',
    '{"type":"function","name":"%s","parameters":',
)


def _llama3(tools: Tools, rest: Rest) -> Form:
    """Calls and nothing else, or text, which a mark may follow, and calls."""
    begins = [(begin % name, name) for name in tools for begin in _LLAMA_CALLS]
    calls = _several([_tag(begin, _by(tools[name]), "}") for begin, name in begins], "; ", rest.is_parallel)
    text = _marked("<|python_tag|>", [_tag("<|python_tag|>", calls, "")], Rest(False, rest.answer))
    if rest.answer is not None:  # which may begin as calls do
        return text
    return _either(calls, {**text, "never_begins_with": [*_SPACE, *(begin for begin, _ in begins)]})


def read_strict_llama3(source: Source, writer: Writer, tools: Tools) -> Steps[None]:
    """What `_llama3` binds."""
    yield from attempt(source, writer, "", _llama3_calls(source, writer, tools))
    while opening := (yield from source.until(("<|python_tag|>",), writer.content)):
        yield from attempt(source, writer, opening, _llama3_calls(source, writer, tools))


def _llama3_calls(source: Source, writer: Writer, tools: Tools) -> Steps[Found]:
    return read_each(source, partial(_llama3_call, source, writer, tools), partial(source.literal, "; "))


def _llama3_call(source: Source, writer: Writer, tools: Tools) -> Steps[Found]:
    for name in tools:
        for begin in _LLAMA_CALLS:
            if (yield from source.literal(begin % name)):
                found = yield from read_arguments(source, writer, name)
                yield from source.literal("}")
                return found
    return Found.NOTHING


def _pythonic(tools: Tools, rest: Rest) -> Form:
    """A list at the beginning, or lists after marks."""
    odd = next((name for name in tools if not re.fullmatch(r"[\w.\-]+", name)), None)
    if odd is not None:
        raise InvalidRequest(
            f"tools: {odd[:80]!r} cannot be called in this model's format; use letters, digits and _", param="tools"
        )
    calls = _several([_tag(f"{name}(", _by(tools[name], "python"), ")") for name in tools], ", ", rest.is_parallel)
    more = _either(_text(""), _sequence(_text(", "), calls)) if rest.is_parallel else _text("")
    first = [_tag(f"[{name}(", _by(tools[name], "python"), ")") for name in tools]
    items = _sequence(_either(*first), more, _text("]"))
    mark, ends = "<|python_start|>", ["<|python_end|>", ""]
    marked = _marked(mark, [_tag(mark, items, ends)], rest)
    if rest.answer is not None:
        is_list = rest.answer["json_schema"].get("type") != "object"  # which may begin as calls do
        return marked if is_list else _either(items, marked)
    text = {**marked, "never_begins_with": [*_SPACE, *(f"[{name}(" for name in tools)]}
    return _either(_sequence(items, marked) if rest.is_parallel else items, text)


def _harmony(tools: Tools, rest: Rest) -> Form:
    """Messages, all of them: nothing can stand outside. Those to a function have its arguments and nothing else."""
    ends = ["<|end|>", "<|return|>", "<|call|>", ""]
    thoughts = [_tag(f"<|channel|>{header}<|message|>", _ANY, ends) for header in ("analysis", "commentary")]
    said = ("final", "final <|constrain|>json")
    messages = thoughts + [_tag(f"<|channel|>{header}<|message|>", rest.answer or _ANY, ends) for header in said]
    json = _sequence(_either(_text(" <|constrain|>json"), _text(" json"), _text("")), _text("<|message|>"))
    for name in tools:
        begins = f"<|channel|>commentary to=functions.{name}", f" to=functions.{name}<|channel|>commentary"
        messages += [_tag(begin, _sequence(json, _by(tools[name])), ends) for begin in begins]
    return _several(messages, "<|start|>assistant", is_parallel=True)


STRICT: Mapping[str, Write] = {
    "hermes": _hermes,
    "mistral": _mistral,
    "deepseek": _deepseek,
    "kimi": _kimi,
    "glm": _glm,
    "qwen3-coder": _qwen3_coder,
    "llama3": _llama3,
    "pythonic": _pythonic,
    "gpt-oss": _harmony,
}
STRICT_READERS: Mapping[str, ReadCalls] = {
    "hermes": read_strict_hermes,
    "llama3": read_strict_llama3,
    "pythonic": read_exact_pythonic,
    "qwen3-coder": read_strict_qwen3_coder,
}
"""For the formats whose usual reader takes more than the tag binds."""


# ------------------------------------------------------------------------------------------- forms of structural tags
def _by(schema: Mapping[str, Any], style: str = "json") -> Form:
    return {"type": "json_schema", "json_schema": dict(schema), **({} if style == "json" else {"style": style})}


def _tag(begin: str, content: Form, end: str | list[str]) -> Form:
    return {"type": "tag", "begin": begin, "content": content, "end": end}


def _marked(mark: str, tags: Sequence[Form], rest: Rest, between: str = "") -> Form:
    """Tags that begin with the mark, between texts, or instead of another answer with `between` them."""
    if rest.answer is not None:
        return _either(rest.answer, _several(tags, between, rest.is_parallel))
    return {"type": "triggered_tags", "triggers": [mark], "tags": list(tags), "stop_after_first": not rest.is_parallel}


def _several(tags: Sequence[Form], separator: str, is_parallel: bool) -> Form:
    form = {"type": "tags_with_separator", "tags": list(tags), "separator": separator}
    return {**form, "at_least_one": True, "stop_after_first": not is_parallel}


def _sequence(*elements: Form) -> Form:
    return {"type": "sequence", "elements": list(elements)}


def _either(*elements: Form) -> Form:
    return {"type": "or", "elements": list(elements)}


def _text(value: str) -> Form:
    return {"type": "const_string", "value": value}
