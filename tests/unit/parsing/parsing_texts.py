"""What the parsers' tests share: the formats, a call in each, and texts that nearly are one."""

# ruff: noqa: E501  (texts of models are kept as they are)
from __future__ import annotations

import json
from typing import Any

from hypothesis import strategies as st

from sapwood.parsing.formats import HARMONY, TOOL_FORMATS, OutputFormat
from sapwood.parsing.pieces import Answer, Parser, join

TOOLS: dict[str, Any] = {
    "get_weather": {"type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer"}}},
    "now": {"type": "object", "properties": {}},
}
CITY = {"city": "Zürich", "days": 3}


def written(form: str, name: str, arguments: dict[str, Any]) -> str:
    """One call as a model writes it in that format."""
    text = json.dumps(arguments, ensure_ascii=False)
    value = {"name": name, "arguments": arguments}
    match form:
        case "hermes":
            return f"<tool_call>\n{json.dumps(value, ensure_ascii=False)}\n</tool_call>"
        case "llama3":
            return json.dumps({"name": name, "parameters": arguments}, ensure_ascii=False)
        case "mistral":
            return f"[TOOL_CALLS]{name}[ARGS]{text}"
        case "pythonic":
            return f"[{name}({', '.join(f'{key}={item!r}' for key, item in arguments.items())})]"
        case "deepseek":
            call = f"<｜tool▁call▁begin｜>function<｜tool▁sep｜>{name}\n```json\n{text}\n```<｜tool▁call▁end｜>"
            return f"<｜tool▁calls▁begin｜>{call}<｜tool▁calls▁end｜>"
        case "kimi":
            call = f"<|tool_call_begin|>functions.{name}:0<|tool_call_argument_begin|>{text}<|tool_call_end|>"
            return f"<|tool_calls_section_begin|>{call}<|tool_calls_section_end|>"
        case "glm":
            items = "".join(f"<arg_key>{key}</arg_key>\n<arg_value>{item}</arg_value>\n" for key, item in arguments.items())
            return f"<tool_call>{name}\n{items}</tool_call>"
        case "qwen3-coder":
            items = "".join(f"<parameter={key}>\n{item}\n</parameter>\n" for key, item in arguments.items())
            return f"<tool_call>\n<function={name}>\n{items}</function>\n</tool_call>"
        case "gpt-oss":
            return f"<|channel|>commentary to=functions.{name} <|constrain|>json<|message|>{text}<|call|>"
        case _:
            raise ValueError(form)


SEVERAL = {
    "hermes": 'Let me see.\n<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>\n<tool_call>\n{"arguments": {"city": "Oslo"}, '
    '"name": "get_weather"}\n</tool_call>',
    "mistral": 'Let me see.[TOOL_CALLS] [{"name": "now", "arguments": {}}, {"name": "get_weather", "arguments": {"city": "Oslo"}}]',
    "deepseek": "Let me see.<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>now<｜tool▁sep｜>{}<｜tool▁call▁end｜>\n<｜tool▁call▁begin｜>get_weather"
    '<｜tool▁sep｜>{"city": "Oslo"}<｜tool▁call▁end｜><｜tool▁calls▁end｜>',
    "kimi": "Let me see.<|tool_calls_section_begin|><|tool_call_begin|>functions.now:0<|tool_call_argument_begin|>{}<|tool_call_end|>"
    '<|tool_call_begin|>functions.get_weather:1<|tool_call_argument_begin|>{"city": "Oslo"}<|tool_call_end|><|tool_calls_section_end|>',
    "glm": "Let me see.\n<tool_call>now\n</tool_call>\n<tool_call>get_weather\n<arg_key>city</arg_key>\n<arg_value>Oslo</arg_value>\n"
    "</tool_call>",
    "qwen3-coder": "Let me see.\n<tool_call>\n<function=now>\n</function>\n</tool_call>\n<tool_call>\n<function=get_weather>\n"
    "<parameter=city>\nOslo\n</parameter>\n</function>\n</tool_call>",
    "gpt-oss": "<|channel|>commentary<|message|>Let me see.<|end|><|start|>assistant<|channel|>commentary to=functions.now<|message|>{}"
    '<|call|><|start|>assistant to=functions.get_weather<|channel|>commentary json<|message|>{"city": "Oslo"}<|call|>',
    "llama3": 'Let me see.<|python_tag|>{"name": "now", "parameters": {}}; {"name": "get_weather", "parameters": {"city": "Oslo"}}',
    "pythonic": "Let me see.<|python_start|>[now(), get_weather(city='Oslo')]<|python_end|>",
}  # fmt: skip
"""In each format: a word, then two calls."""


FORMS = (*TOOL_FORMATS, HARMONY)
MARKS = (
    "<tool_call>", "</tool_call>", "```json\n", "```", "<|python_tag|>", "[TOOL_CALLS]", "[ARGS]", "[", "]", "(", ")", "{", "}",
    "<｜tool▁calls▁begin｜>", "<｜tool▁call▁begin｜>", "<｜tool▁sep｜>", "function", "<｜tool▁call▁end｜>", "<｜tool▁calls▁end｜>",
    "<|tool_calls_section_begin|>", "<|tool_call_begin|>", "functions.now:1", "<|tool_call_argument_begin|>", "<|tool_call_end|>",
    "<|tool_calls_section_end|>", "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>", "<function=now>", "</function>",
    "<parameter=x>", "</parameter>", "<|channel|>", "analysis", "commentary to=functions.now ", "final", "<|message|>", "<|end|>",
    "<|call|>", "<|start|>", "<|python_start|>", "<think>", "</think>", "◁think▷", "◁/think▷",
    '"name"', '"arguments"', '"now"', '"get_weather"', ":", ",", ";", '"', "\\", "1", "null", "-", ".5", "now", "get_weather",
    "city=", "'x'", " ", "\n", "\t", "é", "🙂", '{"name": "now", "arguments": {}}', '{"name": "other"}', "{}", "to=functions.now",
)  # fmt: skip
WHOLE_CALLS = [written(form, name, arguments) for form in FORMS for name, arguments in (("get_weather", CITY), ("now", {}))]
texts = st.lists(st.sampled_from([*MARKS, *WHOLE_CALLS]) | st.text(max_size=4), max_size=14).map("".join)
"""Texts full of what parsers look for, right and wrong."""


def streamed(parser: Parser, text: str, cuts: list[int]) -> Answer:
    """`text` in chunks that end at `cuts`."""
    places = sorted({min(cut, len(text)) for cut in cuts} | {0, len(text)})
    pieces = []
    for start, end in zip(places, places[1:], strict=False):
        pieces += parser.feed(text[start:end])
    return join([*pieces, *parser.finish()])


def by_characters(parser: Parser, text: str) -> Answer:
    """`text` one character at a time."""
    return streamed(parser, text, list(range(len(text))))


def plain(answer: Answer) -> tuple[str, str, list[tuple[str, str]]]:
    """An answer without the calls' ids, which are drawn."""
    return answer.content, answer.reasoning, [(call.name, call.arguments) for call in answer.calls]


def form_of(name: str) -> OutputFormat:
    """The format of that name, with reasoning between think tags."""
    return OutputFormat(name, HARMONY if name == HARMONY else "qwen3")
