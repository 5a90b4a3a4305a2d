"""Laws of all parsers: chunks do not matter, what is no call is text, and a call comes through whole."""

from __future__ import annotations

import json
import os

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from parsing_texts import CITY, FORMS, SEVERAL, TOOLS, by_characters, form_of, plain, streamed, texts, written

from sapwood.parsing.formats import THINK_TAGS, OutputFormat
from sapwood.parsing.pieces import Call, CallArguments, parse

MANY = 10_000 if os.environ.get("SAPWOOD_LONG_TESTS") else 250
forms = st.sampled_from(FORMS)
WORDS = st.text(st.characters(codec="utf-8", exclude_characters="<[◁{`\r"), max_size=30)


@settings(max_examples=MANY, deadline=None)
@given(form=forms, text=texts, cuts=st.lists(st.integers(0, 200), max_size=12), is_forced=st.booleans(), separates=st.booleans())
def test_chunks_do_not_matter(form: str, text: str, cuts: list[int], is_forced: bool, separates: bool) -> None:
    def fresh():  # type: ignore[no-untyped-def]
        return form_of(form).parser(TOOLS, separates=separates, is_forced=is_forced)

    whole_parser, chunk_parser = fresh(), fresh()
    whole = plain(parse(whole_parser, text))
    assert plain(streamed(chunk_parser, text, cuts)) == whole
    assert plain(by_characters(fresh(), text)) == whole
    assert chunk_parser.num_reasoning_chars == whole_parser.num_reasoning_chars <= len(text)


@settings(max_examples=MANY // 4, deadline=None)
@given(form=forms, text=WORDS, separates=st.booleans())
def test_text_that_is_no_call_arrives_unchanged(form: str, text: str, separates: bool) -> None:
    answer = parse(form_of(form).parser(TOOLS, separates=separates), text)
    assert (answer.content, answer.reasoning, answer.calls) == (text, "", [])


@settings(max_examples=MANY // 4, deadline=None)
@given(form=st.sampled_from([form for form in FORMS if form != "gpt-oss"]), text=texts)
def test_without_a_call_nothing_is_lost(form: str, text: str) -> None:
    """Whatever marks a text is full of: when no call is found in it, it is content to the last character."""
    answer = parse(OutputFormat(form).parser(TOOLS), text)
    if not answer.calls:
        assert answer.content == text


@pytest.mark.parametrize("form", FORMS)
def test_a_function_that_was_not_offered_is_not_called(form: str) -> None:
    text = written(form, "other", CITY)
    answer = parse(OutputFormat(form).parser(TOOLS), text)
    assert answer.calls == []
    assert answer.content == (text if form != "gpt-oss" else json.dumps(CITY, ensure_ascii=False))


@pytest.mark.parametrize("form", FORMS)
def test_a_call_comes_through(form: str) -> None:
    for name, arguments in (("get_weather", CITY), ("now", {})):
        answer = by_characters(OutputFormat(form).parser(TOOLS), written(form, name, arguments))
        assert answer.content == ""
        assert [(call.name, json.loads(call.arguments)) for call in answer.calls] == [(name, arguments)]
        assert answer.calls[0].id


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(max_size=12),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)


@settings(max_examples=MANY // 4, deadline=None)
@given(
    form=st.sampled_from(["hermes", "llama3", "mistral", "pythonic", "deepseek", "kimi"]),
    arguments=st.dictionaries(st.from_regex(r"[a-z_]{1,6}", fullmatch=True), VALUES, max_size=4),
    cuts=st.lists(st.integers(0, 200), max_size=8),
)
def test_any_arguments_come_through(form: str, arguments: dict[str, object], cuts: list[int]) -> None:
    text = written(form, "now", arguments)
    answer = streamed(OutputFormat(form).parser({"now": {}}), text, cuts)
    if form == "pythonic" and not answer.calls:  # Python's keywords are no names of arguments
        return
    assert answer.content == ""
    assert [json.loads(call.arguments) for call in answer.calls] == [arguments]


@pytest.mark.parametrize("form", FORMS)
def test_several_calls_after_a_word(form: str) -> None:
    answer = by_characters(OutputFormat(form).parser(TOOLS), SEVERAL[form])
    assert answer.content == "Let me see."
    assert [(call.name, json.loads(call.arguments)) for call in answer.calls] == [("now", {}), ("get_weather", {"city": "Oslo"})]
    assert len({call.id for call in answer.calls}) == 2


def test_kimis_ids_are_kept() -> None:
    answer = parse(OutputFormat("kimi").parser(TOOLS), SEVERAL["kimi"])
    assert [call.id for call in answer.calls] == ["functions.now:0", "functions.get_weather:1"]


def test_arguments_are_handed_on_while_they_come() -> None:
    parser = OutputFormat("hermes").parser(TOOLS)
    parser.feed('<tool_call>\n{"name": "get_weather", "arguments": {"city": "Os')
    assert parser.feed("lo") == [CallArguments(0, "lo")]


@pytest.mark.parametrize(
    "text",
    [
        '[now(city=__import__("os").getcwd())]', "[now(**{'a': 1})]", "[now(1)]", "[now(x=y)]", "[now(x=f'{1}')]", "[now(x=1+1)]",
        "[now(x=b'1')]", "[now(x={1, 2})]", "[now(x=[i for i in []])]", "[now(x=lambda: 1)]", "[now(x=1j)]", "[now(x=...)]",
        "[now(x=1e999)]", "[now(x=({1: 2}))]", "[now(x=1)(y=2", "[now(x=')", "[now(x=1, x=2)]",
    ],
)  # fmt: skip
def test_pythonic_takes_literals_only(text: str) -> None:
    answer = parse(OutputFormat("pythonic").parser(TOOLS), text)
    if text.startswith("[now(x=1)("):
        assert answer.content == "(y=2"
    else:
        assert (answer.content, answer.calls) == (text, [])


def test_a_broken_call_keeps_what_was_certain() -> None:
    answer = parse(OutputFormat("hermes").parser(TOOLS), '<tool_call>{"name": "now", "arguments": {"a": 1')
    assert [(call.name, call.arguments) for call in answer.calls] == [("now", '{"a": 1')]
    answer = parse(OutputFormat("hermes").parser(TOOLS), '<tool_call>{"name": "now", "arguments": {"a" 1}}</tool_call>')
    assert [(call.name, call.arguments) for call in answer.calls] == [("now", '{"a" ')] and answer.content == "1}}</tool_call>"


def test_raw_control_characters_in_a_string_are_escaped() -> None:
    answer = parse(OutputFormat("hermes").parser(TOOLS), '<tool_call>{"name": "now", "arguments": {"a": "x\ny"}}</tool_call>')
    assert json.loads(answer.calls[0].arguments) == {"a": "x\ny"}


@pytest.mark.parametrize("written_as", ['"{\\"a\\": 1}"', '{"a": 1}'])
def test_arguments_as_a_text_that_holds_json(written_as: str) -> None:
    answer = parse(OutputFormat("hermes").parser(TOOLS), f'<tool_call>{{"name": "now", "arguments": {written_as}}}</tool_call>')
    assert json.loads(answer.calls[0].arguments) == {"a": 1} and answer.content == ""


# ---------------------------------------------------------------------------------------------------- reasoning
@pytest.mark.parametrize("name", THINK_TAGS)
def test_reasoning_is_told_from_the_answer(name: str) -> None:
    tags = THINK_TAGS[name]
    form = OutputFormat("hermes", name)
    text = f"{tags.start}\nHm, two.\n{tags.end}\n\nIt is 2."
    answer = by_characters(form.parser({}), text)
    assert (answer.reasoning, answer.content) == ("Hm, two.", "It is 2.")
    opened = by_characters(form.parser({}, f"user: 1+1\n{tags.start}\n"), text.removeprefix(tags.start))
    assert (opened.reasoning, opened.content) == ("Hm, two.", "It is 2.")
    closed = by_characters(form.parser({}, f"{tags.start}\n\n{tags.end}\n\n"), "It is 2.")
    assert (closed.reasoning, closed.content) == ("", "It is 2.")
    together = by_characters(form.parser({}, separates=False), text)
    assert (together.reasoning, together.content) == ("", text)


def test_deepseek_thinks_from_the_start() -> None:
    answer = by_characters(OutputFormat("none", "deepseek-r1").parser({}), "Hm.</think>Yes.")
    assert (answer.reasoning, answer.content) == ("Hm.", "Yes.")


def test_a_call_after_reasoning() -> None:
    answer = by_characters(OutputFormat("hermes", "qwen3").parser(TOOLS), "<think>Hm.</think>\n" + written("hermes", "now", {}))
    assert answer.reasoning == "Hm." and answer.content == "" and [call.name for call in answer.calls] == ["now"]


def test_reasoning_that_never_ends() -> None:
    parser = OutputFormat("none", "qwen3").parser({})
    answer = by_characters(parser, "<think>Hm. ")
    assert (answer.reasoning, answer.content, parser.num_reasoning_chars) == ("Hm.", "", len("<think>Hm. "))


def test_channels_of_gpt_oss() -> None:
    text = "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>final<|message|>Yes."
    parser = OutputFormat("gpt-oss", "gpt-oss").parser(TOOLS)
    answer = by_characters(parser, text)
    assert (answer.reasoning, answer.content) == ("Hm.", "Yes.")
    assert parser.num_reasoning_chars == len("<|channel|>analysis<|message|>Hm.<|end|>")
    together = by_characters(OutputFormat("gpt-oss", "gpt-oss").parser(TOOLS, separates=False), text)
    assert (together.reasoning, together.content) == ("", "Hm.Yes.")


# --------------------------------------------------------------------------------------------------- forced calls
def test_forced_calls_are_a_list() -> None:
    text = '[{"name": "now", "parameters": {}}, {"name": "get_weather", "parameters": {"city": "Oslo"}}]'
    answer = by_characters(OutputFormat("none", "none").parser(TOOLS, is_forced=True), text)
    assert answer.content == "" and [call.name for call in answer.calls] == ["now", "get_weather"]
    assert answer.calls[0] == Call(answer.calls[0].id, "now", "{}")
