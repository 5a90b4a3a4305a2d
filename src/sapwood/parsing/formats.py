"""Which format a model writes in: by name, or found in its chat template.

Owns the tables of formats and puts parsers together; knows no model. Invariant: a format that is not named and not found is none:
then text is content.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from sapwood.errors import ConfigError
from sapwood.parsing.harmony import HarmonyParser
from sapwood.parsing.pieces import Parser, PlainText, Tools, Writer, draw_id, draw_short_id
from sapwood.parsing.pythonic import read_pythonic
from sapwood.parsing.source import Source, SteppedParser, Steps
from sapwood.parsing.strict_formats import STRICT, STRICT_READERS, Rest
from sapwood.parsing.tagged_arguments import read_glm, read_qwen3_coder
from sapwood.parsing.thinking import Then, ThinkParser, ThinkTags
from sapwood.parsing.tool_formats import (
    ReadCalls,
    read_deepseek,
    read_hermes,
    read_kimi,
    read_list,
    read_llama3,
    read_mistral,
)

AUTO, NONE, HARMONY = "auto", "none", "gpt-oss"


@dataclass(frozen=True, slots=True)
class ToolFormat:
    """A way of writing calls. `signs`: a template that has one of these texts is made for it; `marks`: what opens calls."""

    read: ReadCalls
    signs: tuple[str, ...]
    marks: tuple[str, ...]


# The order counts for finding a format in a template: the particular before the general.
TOOL_FORMATS: dict[str, ToolFormat] = {
    "deepseek": ToolFormat(read_deepseek, ("<｜tool▁calls▁begin｜>",), ("<｜tool▁calls▁begin｜>",)),
    "kimi": ToolFormat(read_kimi, ("<|tool_calls_section_begin|>",), ("<|tool_calls_section_begin|>",)),
    "glm": ToolFormat(read_glm, ("<arg_key>",), ("<tool_call>",)),
    "qwen3-coder": ToolFormat(read_qwen3_coder, ("<function=",), ("<tool_call>",)),
    "hermes": ToolFormat(read_hermes, ("<tool_call>",), ("<tool_call>",)),
    "mistral": ToolFormat(read_mistral, ("[TOOL_CALLS]",), ("[TOOL_CALLS]",)),
    "pythonic": ToolFormat(read_pythonic, ("<|python_start|>", "<|tool_list_start|>", "[func_name1("), ("<|python_start|>",)),
    "llama3": ToolFormat(read_llama3, ("<|python_tag|>", '"parameters": dictionary'), ("<|python_tag|>",)),
}
THINK_TAGS: dict[str, ThinkTags] = {
    "kimi": ThinkTags("◁think▷", "◁/think▷"),
    "qwen3": ThinkTags("<think>", "</think>"),
    "glm": ThinkTags("<think>", "</think>"),
    "deepseek-r1": ThinkTags("<think>", "</think>", is_implied=True),
}
_HARMONY_MARKS = ("<|channel|>", "<|message|>")


@dataclass(frozen=True, slots=True)
class OutputFormat:
    """How a model writes calls and reasoning: names in the tables above, or none.

    `control_texts` are the spellings of the vocabulary's control tokens, which decoding leaves out unless it is told not to.
    `is_hybrid`: the template lets a request say whether to think, and the model thinks unless it is told not to.
    """

    tool_format: str = NONE
    reasoning_format: str = NONE
    control_texts: frozenset[str] = frozenset()
    is_hybrid: bool = False

    @property
    def has_short_ids(self) -> bool:
        """Whether the model's template takes no other ids of calls than nine letters and digits."""
        return self.tool_format == "mistral"

    def strict_form(self, tools: Tools, rest: Rest) -> dict[str, Any] | None:
        """The structural tag that binds calls of `tools` to their schemas; None where nothing is read as a call."""
        name = HARMONY if self.is_harmony else self.tool_format
        return STRICT[name](tools, rest) if name in STRICT else None

    @property
    def is_harmony(self) -> bool:
        """Whether the model speaks gpt-oss's language, where calls and reasoning are one matter."""
        return HARMONY in (self.tool_format, self.reasoning_format)

    def needs_control_texts(self, has_tools: bool, separates: bool) -> bool:
        """Whether the text has to be decoded with its control tokens, for a parser to see its marks."""
        marks: tuple[str, ...] = _HARMONY_MARKS if self.is_harmony else ()
        if has_tools and self.tool_format in TOOL_FORMATS:
            marks += TOOL_FORMATS[self.tool_format].marks
        if separates and self.reasoning_format in THINK_TAGS:
            marks += (THINK_TAGS[self.reasoning_format].end,)
        return not self.control_texts.isdisjoint(marks)

    def thought_end(self, prompt_end: str) -> str:
        """What ends the thought that an answer to a prompt ending in `prompt_end` begins with; "" where there is none.

        A template may know the tags although its model only sometimes, or never, thinks: waiting for an end is for those that do.
        """
        tags = THINK_TAGS.get(self.reasoning_format)
        prompt = prompt_end.rstrip()
        if tags is None or prompt.endswith(tags.end):
            return ""
        return tags.end if self.is_hybrid or tags.is_implied or prompt.endswith(tags.start) else ""

    def parser(
        self, tools: Tools, prompt_end: str = "", *, separates: bool = True, is_forced: bool = False, is_strict: bool = False
    ) -> Parser:
        """A parser for one text that follows a prompt ending in `prompt_end`.

        `separates`: reasoning is to be told from content; `is_forced`: a grammar lets the model write calls only, as a JSON list;
        `is_strict`: calls count in the form in which a grammar binds them.
        """
        if self.is_harmony and not is_forced:
            return HarmonyParser(tools, separates)
        read = STRICT_READERS.get(self.tool_format, self._read_calls) if is_strict else self._read_calls
        calls = _calls_parser(read_list if is_forced else read, tools, draw_short_id if self.has_short_ids else draw_id)
        if not separates or self.reasoning_format not in THINK_TAGS:
            return calls or PlainText()
        tags = THINK_TAGS[self.reasoning_format]
        prompt = prompt_end.rstrip()
        begins_inside = prompt.endswith(tags.start) or (tags.is_implied and not prompt.endswith(tags.end))
        thinking = ThinkParser(tags, begins_inside)
        return Then(thinking, calls) if calls is not None else thinking

    @property
    def _read_calls(self) -> ReadCalls | None:
        return TOOL_FORMATS[self.tool_format].read if self.tool_format in TOOL_FORMATS else None


def find_format(tool_parser: str, reasoning_parser: str, template: str, control_texts: frozenset[str]) -> OutputFormat:
    """The format by the names of its parsers, where `auto` looks into the template; raises ConfigError for unknown names."""
    tool_format = _find_tool_format(template) if tool_parser == AUTO else tool_parser
    reasoning_format = _find_reasoning_format(template) if reasoning_parser == AUTO else reasoning_parser
    if tool_format not in (*TOOL_FORMATS, HARMONY, NONE):
        raise ConfigError(f"unknown tool call parser {tool_parser!r}; known: {', '.join(TOOL_FORMATS)}", param="tool_call_parser")
    if reasoning_format not in (*THINK_TAGS, HARMONY, NONE):
        raise ConfigError(
            f"unknown reasoning parser {reasoning_parser!r}; known: {', '.join(THINK_TAGS)}", param="reasoning_parser"
        )
    return OutputFormat(tool_format, reasoning_format, control_texts, is_hybrid="enable_thinking" in template)


def _find_tool_format(template: str) -> str:
    """A template that shows tools in no known format gets the reader that also takes plain JSON."""
    if _HARMONY_MARKS[0] in template:
        return HARMONY
    found = (name for name, form in TOOL_FORMATS.items() if any(sign in template for sign in form.signs))
    return next(found, "hermes" if "tools" in template else NONE)


def _find_reasoning_format(template: str) -> str:
    if _HARMONY_MARKS[0] in template:
        return HARMONY
    if "◁think▷" in template:
        return "kimi"
    return "qwen3" if "</think>" in template else NONE


def _calls_parser(read: ReadCalls | None, tools: Tools, draw: Callable[[], str]) -> SteppedParser | None:
    if read is None or not tools:
        return None
    return SteppedParser(partial(_read, read, tools), tidies=True, draw_id=draw)


def _read(read: ReadCalls, tools: Tools, source: Source, writer: Writer) -> Steps[None]:
    return read(source, writer, tools)
