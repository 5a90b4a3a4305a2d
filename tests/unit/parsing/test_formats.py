"""Finding a model's format in its chat template, and by name."""

from __future__ import annotations

import pytest

from sapwood.config.options import BY_NAME
from sapwood.errors import ConfigError
from sapwood.parsing.formats import AUTO, HARMONY, NONE, THINK_TAGS, TOOL_FORMATS, find_format

# What tells the templates of the families apart, as their own templates have it.
TEMPLATES = [
    ('{{ tools }}<tool_call>\n{"name": <function-name>}', "hermes", NONE),
    ("{{ tools }}<tool_call>{% if '</think>' in content %}", "hermes", "qwen3"),
    ("{{ tools }}<tool_call>{{ name }}\n<arg_key>{{ k }}</arg_key></think>", "glm", "qwen3"),
    ("{{ tools }}<tool_call>\n<function=example>\n<parameter=x>", "qwen3-coder", NONE),
    ("{{ tools }}[AVAILABLE_TOOLS][TOOL_CALLS]", "mistral", NONE),
    ("{{ tools }}<｜tool▁calls▁begin｜>{{ c.split('</think>') }}", "deepseek", "qwen3"),
    ("{{ tools }}<|tool_calls_section_begin|>", "kimi", NONE),
    ("{{ m }}◁think▷", NONE, "kimi"),
    ("{{ tools }}<|channel|>analysis<|message|>", HARMONY, HARMONY),
    ('{{ tools }}{"name": function name, "parameters": dictionary of argument name}', "llama3", NONE),
    ("{{ tools }}[func_name1(params_name1=params_value1)]", "pythonic", NONE),
    ("{{ tools | tojson }}", "hermes", NONE),
    ("{{ messages }}", NONE, NONE),
]


@pytest.mark.parametrize(("template", "tool_format", "reasoning_format"), TEMPLATES)
def test_templates_tell_their_format(template: str, tool_format: str, reasoning_format: str) -> None:
    found = find_format(AUTO, AUTO, template, frozenset())
    assert (found.tool_format, found.reasoning_format) == (tool_format, reasoning_format)


def test_names_beat_templates_and_unknown_ones_are_errors() -> None:
    assert find_format("mistral", NONE, "<tool_call></think>", frozenset()).tool_format == "mistral"
    for names in (("x", AUTO), (AUTO, "x")):
        with pytest.raises(ConfigError, match="'x'; known: "):
            find_format(*names, "", frozenset())


def test_the_options_know_every_format() -> None:
    assert {value for _, value in BY_NAME["tool_call_parser"].values} == {AUTO, NONE, HARMONY, *TOOL_FORMATS}
    assert {value for _, value in BY_NAME["reasoning_parser"].values} == {AUTO, NONE, HARMONY, *THINK_TAGS}


def test_marks_that_are_control_tokens_are_asked_for() -> None:
    form = find_format("kimi", "qwen3", "", frozenset({"<|tool_calls_section_begin|>"}))
    assert form.needs_control_texts(has_tools=True, separates=True) and not form.needs_control_texts(False, True)
    assert find_format("none", "kimi", "", frozenset({"◁/think▷"})).needs_control_texts(False, True)
    assert find_format(HARMONY, HARMONY, "", frozenset({"<|channel|>"})).needs_control_texts(False, False)
