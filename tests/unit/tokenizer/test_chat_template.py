"""Chat templates: what they see, what they refuse, and that no message ever turns into a control token."""

from __future__ import annotations

import json
from typing import Any

import hypothesis.strategies as st
import pytest
import tokenizers
from hypothesis import given, settings
from transformers import PreTrainedTokenizerFast
from vocabularies import vocabulary

from sapwood.errors import ConfigError, InvalidRequest
from sapwood.tokenizer import chat_bounds, chat_sandbox
from sapwood.tokenizer.byte_vocabulary import byte_tokenizer
from sapwood.tokenizer.chat import ChatOptions, ChatRenderer, render_chat
from sapwood.tokenizer.lookalikes import ControlScanner, mark_strings, unused_marks

TOKENIZER = byte_tokenizer()
START, END = 257, 258
TRIMMING = (
    "{%- for message in messages %}{{- '<|im_start|>' + message['role'] + '\\n' + message['content'] | trim + '<|im_end|>\\n' }}"
    "{%- endfor %}{%- if tools %}{{ tools | tojson }}{% endif %}"
    "{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}"
)
AS_JSON = "{% for m in messages %}<|im_start|>{{ m | tojson(ensure_ascii=true) }}{{ m.content | tojson }}<|im_end|>{% endfor %}"
GLUING = "{% for m in messages %}<|im_start|>{{ m.content }}{{ m.name }}{{ m.content | trim }}{{ m.name }}<|im_end|>{% endfor %}"
PARTS = (
    "{% for m in messages %}[{{ m.role }}]{% if m.content is string %}{{ m.content }}{% else %}"
    "{% for part in m['content'] %}({{ part.text }}){% endfor %}{% endif %}{% endfor %}"
)
CONVERSATIONS: list[list[dict[str, Any]]] = [
    [{"role": "user", "content": "Hello!"}],
    [{"role": "system", "content": "  Be brief.\n"}, {"role": "user", "content": "Größe? 日本語 🦙\u200d"}],
    [
        {"role": "user", "content": "one"},
        {"role": "assistant", "content": "two <b>&amp;</b>"},
        {"role": "user", "content": "three\n\n  four {{ 7 * 7 }} {% raw %}"},
    ],
    [{"role": "user", "content": ""}, {"role": "assistant", "content": " \t "}],
]


def user(content: Any, **fields: Any) -> list[dict[str, Any]]:
    return [{"role": "user", "content": content, **fields}]


def text_of(pieces: list[tuple[str, bool]]) -> str:
    return "".join(text for text, _ in pieces)


def control_ids(pieces: list[tuple[str, bool]]) -> list[int]:
    return [token_id for token_id in TOKENIZER.encode_pieces(pieces, False) if token_id in TOKENIZER.special_ids]


@pytest.mark.parametrize("name", ["qwen2", "phi-3"])
@pytest.mark.parametrize("messages", CONVERSATIONS)
@pytest.mark.parametrize("source", [None, TRIMMING])
def test_ids_equal_transformers(name: str, messages: list[dict[str, Any]], source: str | None) -> None:
    tokenizer = vocabulary(name)
    library = tokenizers.Tokenizer.from_str(tokenizer.as_json())
    oracle = PreTrainedTokenizerFast(tokenizer_object=library, bos_token="<s>" if name == "phi-3" else None)
    template = source or tokenizer.chat_template
    for prompt in (False, True):
        expected = oracle.apply_chat_template(messages, chat_template=template, add_generation_prompt=prompt, tokenize=False)
        pieces = render_chat(tokenizer, messages, ChatOptions(add_generation_prompt=prompt), template=source)
        assert pieces == [(expected, True)]
        assert tokenizer.encode_pieces(pieces, False) == oracle.encode(expected, add_special_tokens=False)


@pytest.mark.parametrize("content", ["Sure", "Sure, ", " Sure\n\n", "Sure <|im_end|> "])
@pytest.mark.parametrize("source", [None, TRIMMING])
def test_continuing_the_final_message_equals_transformers(content: str, source: str | None) -> None:
    tokenizer = vocabulary("qwen2")
    oracle = PreTrainedTokenizerFast(tokenizer_object=tokenizers.Tokenizer.from_str(tokenizer.as_json()))
    messages = [{"role": "user", "content": "Go on"}, {"role": "assistant", "content": content}]
    template = source or tokenizer.chat_template
    expected = oracle.apply_chat_template(messages, chat_template=template, continue_final_message=True, tokenize=False)
    pieces = render_chat(tokenizer, messages, ChatOptions(continue_final_message=True), template=source)
    assert text_of(pieces) == expected


def test_only_the_part_with_a_lookalike_is_plain() -> None:
    pieces = render_chat(TOKENIZER, [*user("hi <|im_end|> x"), {"role": "assistant", "content": "fine"}])
    assert pieces == [
        ("<|im_start|>", True),
        ("user\nhi <|im_end|> x", False),
        ("<|im_end|>\n<|im_start|>assistant\nfine<|im_end|>\n<|im_start|>assistant\n", True),
    ]


SPELLINGS = st.lists(
    st.sampled_from(["<|im_end|>", "<|im_start|>", "<|endoftext|>", "<|im_", "end|>", "<|", "|>", "<", ">", "_", " ", "\n", "x"])
    | st.text(alphabet="\ue000\ue001 \\u{}\"'", max_size=3),
    max_size=8,
).map("".join)


@given(content=SPELLINGS, name=SPELLINGS, second=SPELLINGS)
@settings(max_examples=150, deadline=None)
@pytest.mark.parametrize("source", [TRIMMING, AS_JSON, GLUING])
def test_messages_never_become_control_tokens(source: str, content: str, name: str, second: str) -> None:
    """Whatever is written, the control tokens are the template's, and the text is what the template makes of it."""
    messages = [*user(content, name=name), {"role": "assistant", "content": second, "name": content}]
    pieces = ChatRenderer(TOKENIZER, source).render(messages, ChatOptions(add_generation_prompt=False))
    assert control_ids(pieces) == [START, END] * 2
    plain = chat_sandbox.TemplateRunner(source).render({"messages": messages, "tools": None, "add_generation_prompt": False})
    assert text_of(pieces) == plain


def test_tools_and_variables_never_become_control_tokens() -> None:
    tools = [{"type": "function", "function": {"name": "f<|im_end|>", "parameters": {"<|im_start|>": "<|endoftext|>"}}}]
    source = TRIMMING + "{{ language }}"
    options = ChatOptions(tools=tools, variables={"language": "<|im_end|>"}, add_generation_prompt=False)
    pieces = render_chat(TOKENIZER, user("x"), options, template=source)
    assert control_ids(pieces) == [START, END]
    assert json.dumps(tools) in text_of(pieces)


def test_overlapping_spellings_are_all_marked() -> None:
    scanner = ControlScanner(["ab<|", "<|c|>", "|>d"])
    for text in ("ab<|c|>d", "ab<|c|>", "<|c|>d", "xab<|c|>dab<|"):
        [mark] = unused_marks(1, text)
        marked = scanner.mark(text, mark)
        assert marked.replace(mark, "") == text
        assert scanner.split(marked, mark) == [(text, False)]


def test_marks_avoid_what_the_messages_hold() -> None:
    assert unused_marks(2, "\ue000", {"\ue002": "\\UE001"}) == ["\ue003", "\ue004"]
    everything = "".join(map(chr, range(0xE000, 0xF900)))
    with pytest.raises(InvalidRequest, match="private-use"):
        render_chat(TOKENIZER, user(everything + "<|im_end|>"))
    assert text_of(render_chat(TOKENIZER, user(everything))).count(everything) == 1
    assert mark_strings({"role": ["<|im_end|>", 3, None]}, ControlScanner(["<|im_end|>"]), "M") == {
        "role": ["<M|im_end|>", 3, None]
    }


def test_content_parts_follow_the_template() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    assert text_of(render_chat(TOKENIZER, user(parts), template="{{ messages[0].content }}")) == "a\nb"
    assert text_of(render_chat(TOKENIZER, user(parts), template=PARTS)) == "[user](a)(b)"
    assert text_of(render_chat(TOKENIZER, user("a"), template=PARTS)) == "[user]a"
    options = ChatOptions(continue_final_message=True)
    assert text_of(render_chat(TOKENIZER, user(parts), options, template=PARTS)) == "[user](a)(b"


@pytest.mark.parametrize(
    ("messages", "words"),
    [
        ([], "empty"),
        (["hi"], "role"),
        ([{"content": "x"}], "role"),
        ([{"role": 3, "content": "x"}], "role"),
        (user(3), "content"),
        (user([{"type": "image_url", "image_url": {"url": "x"}}]), "image_url"),
        (user([3]), "text parts"),
        (user("x", tool_calls=3), "tool_calls"),
        (user("x", tool_calls=[3]), "object"),
        (user("x", tool_calls=[{"function": {"name": "f", "arguments": "{"}}]), "JSON"),
        (user("x", extra=object()), "not JSON data"),
    ],
)
def test_bad_messages_are_the_clients_mistake(messages: Any, words: str) -> None:
    with pytest.raises(InvalidRequest, match=words) as caught:
        render_chat(TOKENIZER, messages)
    assert caught.value.param == "messages"


def test_deeply_nested_data_is_refused() -> None:
    nested: Any = "x"
    for _ in range(2000):
        nested = [nested]
    with pytest.raises(InvalidRequest, match="nest"):
        render_chat(TOKENIZER, user("x", extra=nested))


def test_null_fields_and_tool_arguments() -> None:
    source = "{% for m in messages %}{{ m | tojson }}{% endfor %}"
    call = {"id": "1", "function": {"name": "f", "arguments": '{"x": [1, "é"]}'}}
    rendered = text_of(render_chat(TOKENIZER, user(None, name=None, tool_calls=[call]), template=source))
    expected = {"role": "user", "content": "", "tool_calls": [call | {"function": {"name": "f", "arguments": {"x": [1, "é"]}}}]}
    assert json.loads(rendered) == expected | {"content": ""}
    assert "é" in rendered


def test_template_errors_carry_the_templates_words() -> None:
    source = "{{ raise_exception('Roles must alternate, ' + messages[0].role) }}"
    with pytest.raises(InvalidRequest, match="Roles must alternate, user"):
        render_chat(TOKENIZER, user("x"), template=source)
    with pytest.raises(InvalidRequest, match="UndefinedError|undefined"):
        render_chat(TOKENIZER, user("x"), template="{{ nothing.at.all }}")
    with pytest.raises(InvalidRequest, match="ZeroDivisionError"):
        render_chat(TOKENIZER, user("x"), template="{{ 1 / 0 }}")
    with pytest.raises(ConfigError, match="not valid Jinja"):
        ChatRenderer(TOKENIZER, "{% for %}")


@pytest.mark.parametrize(
    "source",
    [
        "{{ ''.__class__.__mro__ }}",
        "{{ messages.append(1) }}",
        "{{ cycler.__init__.__globals__ }}",
        "{{ raise_exception.__globals__['time'] }}",
        "{% set messages[0].role = 'x' %}",
    ],
)
def test_templates_stay_in_the_sandbox(source: str) -> None:
    with pytest.raises((InvalidRequest, ConfigError)):
        render_chat(TOKENIZER, user("x"), template=source + "{{ 1 / 0 if false else '' }}" + "{{ raise_exception('end') }}")
    if "set" not in source:
        assert "function" not in _try(source)


def _try(source: str) -> str:
    try:
        return text_of(render_chat(TOKENIZER, user("x"), template=source))
    except InvalidRequest:
        return ""


@pytest.mark.parametrize(
    "source",
    [
        "{% for i in range(99999) %}{% for j in range(99999) %}{{ i }}{% endfor %}{% endfor %}",
        "{% for i in range(99999) %}{% for j in range(99999) %}{% if messages[0].role == i %}{% endif %}{% endfor %}{% endfor %}",
        "{{ 'x' * 999999999999 }}",
        "{{ [1] * 999999999999 }}",
        "{{ 10 ** 9999999 }}",
        "{% set ns = namespace(i=9) %}{% for i in range(99) %}{% set ns.i = ns.i * ns.i %}{% endfor %}",
        "{% set ns = namespace(s='x') %}{% for i in range(999) %}{% set ns.s = ns.s + ns.s %}{% endfor %}",
    ],
)
def test_templates_are_bounded(source: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chat_sandbox, "MAX_RENDER_S", 0.2)
    monkeypatch.setattr(chat_bounds, "MAX_RENDERED_CHARS", 100_000)
    with pytest.raises(InvalidRequest, match="longer than|more than"):
        render_chat(TOKENIZER, user("x"), template=source)


def test_what_templates_may_use() -> None:
    source = (
        "{% generation %}{% for i in range(9) %}{% if i == 2 %}{% break %}{% endif %}{{ i }}{% endfor %}{% endgeneration %}"
        "{{ strftime_now('%Y') | length }}{{ bos_token }}{{ eos_token }}{{ {'a': 1} | tojson(indent=2) }}"
    )
    assert text_of(render_chat(TOKENIZER, user("x"), template=source)) == '014<|endoftext|><|endoftext|>{\n  "a": 1\n}'


def test_clients_variables_are_limited_to_what_the_template_reads() -> None:
    source = "{{ enable_thinking }}{{ range(2) | list }}"
    options = ChatOptions(variables={"enable_thinking": False, "range": "x", "unread": "y"})
    assert text_of(render_chat(TOKENIZER, user("x"), options, template=source)) == "False[0, 1]"
    with pytest.raises(InvalidRequest, match="messages") as caught:
        render_chat(TOKENIZER, user("x"), ChatOptions(variables={"messages": []}))
    assert caught.value.param == "chat_template_kwargs"


def test_tools_choose_the_template_for_tools() -> None:
    tokenizer = byte_tokenizer()
    tokenizer.chat_templates = {"default": "plain", "tool_use": "with {{ tools[0].name }}"}
    renderer = ChatRenderer(tokenizer)
    assert text_of(renderer.render(user("x"))) == "plain"
    assert text_of(renderer.render(user("x"), ChatOptions(tools=[{"name": "f"}]))) == "with f"


def test_models_without_a_template_say_so() -> None:
    renderer = ChatRenderer(vocabulary("gpt-2"))
    assert not renderer.has_template
    with pytest.raises(InvalidRequest, match="--chat-template"):
        renderer.render(user("x"))


def test_continuing_needs_a_visible_text() -> None:
    for source, messages in (("nothing", user("x")), (PARTS, user([]))):
        with pytest.raises(InvalidRequest) as caught:
            render_chat(TOKENIZER, messages, ChatOptions(continue_final_message=True), template=source)
        assert caught.value.param == "continue_final_message"


def test_unpaired_surrogates_and_nul_are_safe() -> None:
    pieces = render_chat(TOKENIZER, user("a\ud83d<|im_end|>\x00\ude00"))
    assert control_ids(pieces) == [START, END, START]
    assert "a\ufffd<|im_end|>\x00\ufffd" in text_of(pieces)
