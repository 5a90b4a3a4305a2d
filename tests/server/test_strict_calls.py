"""Strict functions: in every format the grammar takes that format's own calls and nothing else, and binds what the parser reads."""

# ruff: noqa: E501  (texts of models are kept as they are)
from __future__ import annotations

import json
import random
import re
from typing import Any

import jsonschema
import numpy as np
import pytest
from serverkit import House
from test_tool_calls import OTHER, PARAMETERS, THINKING, THOUGHTS, TOOL, chat, choice_of, deltas_of, speaking

from sapwood.grammar.api import GrammarOptions, Vocabulary
from sapwood.grammar.guidance import GuidanceBackend, GuidanceMatcher
from sapwood.messages.types import Submit
from sapwood.parsing.formats import HARMONY, TOOL_FORMATS
from sapwood.parsing.pieces import parse

STRICT = {"type": "function", "function": {**TOOL["function"], "strict": True}}
TRIP = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "minLength": 2},
        "days": {"type": "integer", "minimum": 1, "maximum": 9},
        "unit": {"enum": ["c", "f"]},
        "note": {"anyOf": [{"type": "string", "maxLength": 4}, {"type": "null"}]},
        "day": {"type": "string", "format": "date"},
        "tags": {"$ref": "#/$defs/Tags"},
        "exact": {"type": "boolean"},
    },
    "required": ["city", "days"],
    "additionalProperties": False,
    "$defs": {"Tags": {"type": "array", "items": {"type": "string"}, "maxItems": 2}},
}
NOTHING = {"type": "object", "properties": {}, "additionalProperties": False}
TOOLS = [
    {"type": "function", "function": {"name": "trip", "parameters": TRIP, "strict": True}},
    {"type": "function", "function": {"name": "now", "parameters": NOTHING, "strict": True}},
]
FORMS = (*TOOL_FORMATS, HARMONY)
BEGIN, END = "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"
KIMI, KIMI_END = "<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"


def call_of(form: str, name: str, arguments: dict[str, Any]) -> str:
    """One call, without what stands around all of them."""
    text = json.dumps(arguments)
    values = {key: value if isinstance(value, str) else json.dumps(value) for key, value in arguments.items()}
    match form:
        case "hermes":
            return f'<tool_call>\n{{"name": "{name}", "arguments": {text}}}\n</tool_call>'
        case "mistral":
            return f"[TOOL_CALLS]{name}[ARGS]{text}"
        case "mistral-list":
            return f'{{"name": "{name}", "arguments": {text}}}'
        case "deepseek":
            return f"<｜tool▁call▁begin｜>{name}<｜tool▁sep｜>{text}<｜tool▁call▁end｜>"
        case "deepseek-r1":
            return f"<｜tool▁call▁begin｜>function<｜tool▁sep｜>{name}\n```json\n{text}\n```<｜tool▁call▁end｜>"
        case "kimi":
            return f"<|tool_call_begin|>functions.{name}:0<|tool_call_argument_begin|>{text}<|tool_call_end|>"
        case "glm":
            items = "".join(f"<arg_key>{key}</arg_key>\n<arg_value>{value}</arg_value>\n" for key, value in values.items())
            return f"<tool_call>{name}\n{items}</tool_call>"
        case "qwen3-coder":
            items = "".join(f"<parameter={key}>\n{value}\n</parameter>\n" for key, value in values.items())
            return f"<tool_call>\n<function={name}>\n{items}</function>\n</tool_call>"
        case "llama3" | "llama3-tag":
            return json.dumps({"name": name, "parameters": arguments})
        case "pythonic":
            return f"{name}({', '.join(f'{key}={value!r}' for key, value in arguments.items())})"
        case "gpt-oss":
            return f"<|channel|>commentary to=functions.{name} <|constrain|>json<|message|>{text}<|call|>"
        case "gpt-oss-recipient":
            return f" to=functions.{name}<|channel|>commentary json<|message|>{text}<|call|>"
    raise ValueError(form)


# How several calls are put together: what is before them, between them and after them; and whether text may come before.
AROUND = {
    "hermes": ("Well.\n", "\n", ""),
    "mistral": ("Well.", "", ""),
    "mistral-list": ("Well.[TOOL_CALLS] [", ", ", "]"),
    "deepseek": (f"Well.{BEGIN}", "", END),
    "deepseek-r1": (f"Well.{BEGIN}", "\n", END),
    "kimi": (f"Well.{KIMI}", "", KIMI_END),
    "glm": ("Well.\n", "\n", ""),
    "qwen3-coder": ("Well.\n", "\n", ""),
    "llama3": ("", "; ", ""),
    "llama3-tag": ("Well.<|python_tag|>", "; ", ""),
    "pythonic": ("[", ", ", "]"),
    "gpt-oss": ("<|channel|>analysis<|message|>Well.<|end|><|start|>assistant", "<|start|>assistant", ""),
    "gpt-oss-recipient": ("", "<|start|>assistant", ""),
}
WRITINGS = tuple(AROUND)
FULL = {"city": "Oslo", "days": 3, "unit": "c", "note": "wet", "day": "2026-02-28", "tags": ["a", "b"], "exact": True}
RIGHT: list[list[tuple[str, dict[str, Any]]]] = [
    [("trip", {"city": "Oslo", "days": 3})],
    [("trip", FULL)],
    [("trip", {**FULL, "note": None, "exact": False, "tags": []}), ("now", {}), ("trip", {"city": "Rome", "days": 9})],
    [("now", {})],
]
WRONG: list[dict[str, Any]] = [
    {"city": 5, "days": 3}, {"city": "Oslo"}, {"city": "Oslo", "days": 10}, {"city": "Oslo", "days": "three"},
    {"city": "O", "days": 3}, {"city": "Oslo", "days": 3, "unit": "k"}, {"city": "Oslo", "days": 3, "note": "too long"},
    {"city": "Oslo", "days": 3, "day": "2026-02-30"}, {"city": "Oslo", "days": 3, "tags": ["a", "b", "c"]},
    {"city": "Oslo", "days": 3, "exact": None}, {"city": "Oslo", "days": 3, "more": 1}, {},
]  # fmt: skip


def form_of(writing: str) -> str:
    """The format that a way of writing belongs to."""
    return next(form for form in FORMS if writing.startswith(form))


def written(writing: str, calls: list[tuple[str, dict[str, Any]]]) -> str:
    before, between, after = AROUND[writing]
    return before + between.join(call_of(writing, name, arguments) for name, arguments in calls) + after


def constraint_of(house: House) -> Any:
    return house.backend.sent_of(Submit)[-1].params.constraint


class Bound:
    """The grammar of a constraint over bytes, some control tokens (`marks`) and words."""

    def __init__(self, constraint: Any, marks: list[str], words: tuple[str, ...] = ()) -> None:
        self.ids = {mark: 257 + index for index, mark in enumerate(dict.fromkeys(marks))}
        self.num_controls = 257 + len(self.ids)
        self.tokens = [*(bytes([byte]) for byte in range(256)), b"<end>", *(mark.encode() for mark in self.ids)]
        self.tokens += [word.encode() for word in words]
        vocabulary = Vocabulary(
            self.tokens, list(range(256, self.num_controls)), [256], len(self.tokens), lambda text: list(text.encode())
        )
        self.backend = GuidanceBackend(vocabulary, GrammarOptions(control_ids=self.ids))
        self.grammar = self.backend.compile(constraint)

    def takes(self, text: str) -> bool:
        """Whether the text follows the grammar to its end."""
        matcher = self.grammar.start()
        assert isinstance(matcher, GuidanceMatcher)
        parts = re.split("(" + "|".join(map(re.escape, self.ids)) + ")", text) if self.ids else [text]
        ids = [token for part in parts for token in ([self.ids[part]] if part in self.ids else part.encode())]
        return all(matcher.accept(token) for token in ids) and matcher.inner.is_accepting()

    def spell(self, chance: random.Random, most: int) -> str | None:
        """A text that a model could write which chooses at random; None when it does not come to an end."""
        matcher, text = self.grammar.start(), b""
        assert isinstance(matcher, GuidanceMatcher)
        masks = np.zeros((1, (len(self.tokens) + 31) // 32), dtype=np.uint32)
        for _ in range(most):
            if matcher.inner.is_accepting() and chance.random() < 0.05:
                break
            self.backend.fill([(matcher, 0)], masks)
            allowed = np.flatnonzero(np.unpackbits(masks.view(np.uint8), bitorder="little")[: len(self.tokens)])
            marks = [token for token in allowed if 256 < token < self.num_controls and chance.random() < 0.3]
            words = [token for token in allowed if token >= self.num_controls and chance.random() < 0.8]
            if not text and chance.random() < 0.8:  # as calls begin
                words = [token for token in allowed if self.tokens[token].endswith((b"(", b": ")) and len(self.tokens[token]) > 4]
            token = int(chance.choice(marks or words or [token for token in allowed if token != 256]))
            assert matcher.accept(token)
            text += self.tokens[token]
        return text.decode("utf-8", "replace") if matcher.inner.is_accepting() else None


def marks_of(writing: str) -> list[str]:
    """The control tokens of a format."""
    text = written(writing, RIGHT[2])
    return re.findall(r"<｜[^｜]+｜>|<\|[a-z_]+\|>|\[[A-Z_]{4,}\]|</?tool_call>|</?arg_\w+>", text)


def arguments_of(house: House, **fields: Any) -> list[tuple[str, Any]]:
    message = choice_of(house, **fields)["message"]
    return [(call["function"]["name"], json.loads(call["function"]["arguments"])) for call in message.get("tool_calls", [])]


@pytest.mark.parametrize("writing", WRITINGS)
def test_the_grammar_takes_the_calls_that_the_parser_reads(writing: str) -> None:
    house = speaking("x", tool_call_parser=form_of(writing))
    choice_of(house, tools=TOOLS)
    for marks in ([], marks_of(writing)):  # as text, and as control tokens
        bound = Bound(constraint_of(house), marks)
        for calls in RIGHT:
            text = written(writing, calls)
            assert bound.takes(text), text
        assert bound.takes("Fine." if form_of(writing) != HARMONY else "<|channel|>final<|message|>Fine.")
    for calls in RIGHT:
        house = speaking(written(writing, calls), tool_call_parser=form_of(writing))
        assert arguments_of(house, tools=TOOLS) == calls
        deltas = [call for choice in deltas_of(house, tools=TOOLS) for call in choice["delta"].get("tool_calls", [])]
        for index, (_, arguments) in enumerate(calls):
            assert json.loads("".join(part["function"]["arguments"] for part in deltas if part["index"] == index)) == arguments


@pytest.mark.parametrize("writing", WRITINGS)
def test_the_grammar_takes_no_other_arguments(writing: str) -> None:
    house = speaking("x", tool_call_parser=form_of(writing))
    choice_of(house, tools=TOOLS)
    for marks in ([], marks_of(writing)):
        bound = Bound(constraint_of(house), marks)
        for arguments in WRONG:
            text = written(writing, [("trip", arguments)])
            assert not bound.takes(text), text
            assert not bound.takes(written(writing, [("now", {}), ("trip", arguments)]))
        assert not bound.takes(written(writing, [("now", {"x": 1})]))


@pytest.mark.parametrize("writing", [writing for writing in WRITINGS if writing not in ("pythonic", "llama3")])
def test_marks_that_are_spelled_out_are_no_way_around(writing: str) -> None:
    """The parser sees texts, so a control token's spelling in plain tokens must not open a call."""
    house = speaking("x", tool_call_parser=form_of(writing))
    choice_of(house, tools=TOOLS)
    bound = Bound(constraint_of(house), marks_of(writing))
    matcher = bound.grammar.start()
    assert isinstance(matcher, GuidanceMatcher)
    text = written(writing, [("trip", {"city": 5})])
    assert not all(matcher.accept(token) for token in text.encode())


@pytest.mark.parametrize("writing", WRITINGS)
def test_one_call_at_most(writing: str) -> None:
    house = speaking("x", tool_call_parser=form_of(writing))
    choice_of(house, tools=TOOLS, parallel_tool_calls=False)
    bound = Bound(constraint_of(house), [])
    assert bound.takes(written(writing, RIGHT[0]))
    assert form_of(writing) == HARMONY or not bound.takes(written(writing, RIGHT[2])), "gpt-oss ends at its first call by itself"


@pytest.mark.parametrize("form", FORMS)
def test_whatever_the_grammar_lets_through_is_read_as_it_should_be(form: str) -> None:
    """Texts of a model that chooses at random among what it may: every call in them follows its schema."""
    house = speaking("x", tool_call_parser=form)
    choice_of(house, tools=TOOLS)
    writings = [writing for writing in WRITINGS if form_of(writing) == form]
    marks = [mark for writing in writings for mark in marks_of(writing)]
    words = [
        part for writing in writings for calls in RIGHT for part in re.findall(r"[\w]+|[^\w\s]+|\s+", written(writing, calls))
    ]
    words += [begin % name for begin in ("[%s(", '{"name": "%s", "parameters": ') for name in ("trip", "now")]
    bound = Bound(constraint_of(house), marks, tuple(dict.fromkeys(word for word in words if word not in marks)))
    chance = random.Random(5)
    texts = [text for _ in range(40) if (text := bound.spell(chance, 150)) is not None]
    parser_of = house.context.model.output.parser
    tools = {"trip": TRIP, "now": NOTHING}
    num_calls = 0
    for text in texts:
        parser = parser_of(tools, is_strict=True)
        for call in parse(parser, text).calls:
            jsonschema.validate(json.loads(call.arguments), tools[call.name], format_checker=jsonschema.FormatChecker())
            num_calls += 1
    assert num_calls >= 2, texts


def test_what_no_grammar_has_bound_does_not_count() -> None:
    for form, text in (
        ("hermes", '{"name": "f", "arguments": {"city": 5}}'),
        ("llama3", '{ "name": "f", "parameters": {"city": 5}}'),
        ("llama3", '{"parameters": {"city": 5}, "name": "f"}'),
        ("pythonic", "[ f(city=5)]"),
    ):
        message = choice_of(speaking(text, tool_call_parser=form), tools=[STRICT])["message"]
        assert message == {"role": "assistant", "content": text}


def test_functions_that_are_not_strict_stay_free_beside_those_that_are() -> None:
    for form in FORMS:
        house = speaking("x", tool_call_parser=form)
        choice_of(house, tools=[STRICT, OTHER])
        bound = Bound(constraint_of(house), [])
        assert bound.takes(written(form, [("g", {"a": "one", "b": 2})])), form
        assert not bound.takes(written(form, [("f", {"town": "x"})])), form


def test_after_thoughts() -> None:
    house = speaking(THOUGHTS + call_of("hermes", "f", {"city": "Oslo"}), THINKING)
    message = choice_of(house, tools=[STRICT])["message"]
    assert message["reasoning_content"] == "Hm. Zürich it is." and len(message["tool_calls"]) == 1
    assert constraint_of(house).starts_after == tuple(b"</think>") and constraint_of(house).kind == "structural_tag"


def with_argument(schema: Any, name: str = "a", **more: Any) -> list[dict[str, Any]]:
    parameters = {"type": "object", "properties": {name: schema}, "additionalProperties": False, **more}
    return [{"type": "function", "function": {"name": "f", "strict": True, "parameters": parameters}}]


@pytest.mark.parametrize(
    ("form", "tools", "word"),
    [
        ("glm", with_argument({"type": "string", "format": "regex"}), "format"),
        ("glm", with_argument({"anyOf": [{"type": "string"}, {"type": "array"}]}), "told apart"),
        ("glm", with_argument({"anyOf": [{"type": "string"}, {"type": "integer", "minimum": 3}]}), "told apart"),
        ("glm", with_argument({"type": "string"}, " a"), "name"),
        ("qwen3-coder", with_argument({"type": "string"}, "a>"), "name"),
        ("qwen3-coder", with_argument({"type": "string"}, minProperties=1), "minProperties"),
        ("qwen3-coder", with_argument({"type": "string"}, required=["b"]), "requires"),
        ("pythonic", with_argument({"type": "string"}, "class"), "name"),
        ("pythonic", with_argument({"type": "string"}, "a-b"), "name"),
        ("none", [STRICT], "leaves calls in the text"),
        ("hermes", with_argument({"type": "x"}), "tools"),
    ],
)  # fmt: skip
def test_what_a_format_cannot_bind_is_refused_with_the_reason(form: str, tools: Any, word: str) -> None:
    response = chat(speaking("x", tool_call_parser=form), tools=tools)
    error = response.json()["error"]
    assert response.status_code == 400 and error["param"] == "tools" and word in error["message"], error


def test_beside_another_form_of_the_answer_strict_is_refused() -> None:
    response = chat(speaking("x"), tools=[STRICT], regex="a+")
    assert response.status_code == 400 and response.json()["error"]["param"] == "tools"


def test_the_constraint_says_which_function_has_which_schema() -> None:
    house = speaking(call_of("hermes", "f", {"city": "Oslo"}))
    assert arguments_of(house, tools=[STRICT, OTHER]) == [("f", {"city": "Oslo"})]
    tag = json.loads(constraint_of(house).text)["format"]
    assert tag["triggers"] == ["<tool_call>"]
    assert [each["content"]["json_schema"] for each in tag["tags"]] == [PARAMETERS, {"type": "object"}]
