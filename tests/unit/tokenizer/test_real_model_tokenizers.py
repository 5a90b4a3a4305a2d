"""The catalog's real tokenizers: load quickly enough to use, agree with transformers on text and on whole chats."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import tokenizers
from transformers import AutoTokenizer, PreTrainedTokenizerFast
from vocabularies import TEXTS

from sapwood.tokenizer.chat import ChatOptions, ChatRenderer
from sapwood.tokenizer.load import load_tokenizer
from sapwood.tokenizer.tokenizer import Tokenizer
from sapwood.weights.catalog import pull

pytestmark = [pytest.mark.real_model, pytest.mark.timeout(600)]

SMOLLM, QWEN, GEMMA = "smollm2-135m-instruct", "qwen2.5-coder-0.5b-instruct", "gemma-3-270m"
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "get_weather",
            "description": 'Weather für eine Stadt; returns °C & "text"',
            "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
        },
    }
]
CALL = {"type": "function", "function": {"name": "get_weather", "arguments": {"city": "Tromsø"}}}
CHATS: list[list[dict[str, Any]]] = [
    [{"role": "user", "content": "What is the capital of France?"}],
    [{"role": "system", "content": "You are terse.\n"}, {"role": "user", "content": " 日本語で「🦙」? e\u0301 \u200d x  "}],
    [
        {"role": "user", "content": "one\n\ntwo\tthree"},
        {"role": "assistant", "content": "def f():\n    return {'a': 1}\n"},
        {"role": "user", "content": "And 12345 + 67.89?"},
    ],
    [
        {"role": "user", "content": "Weather?"},
        {"role": "assistant", "content": "Looking.", "tool_calls": [CALL, CALL]},
        {"role": "tool", "content": '{"t": -3}'},
        {"role": "tool", "content": "<b>cold</b>"},
        {"role": "assistant", "content": "-3 °C"},
        {"role": "user", "content": "Thanks <tool_call>"},
    ],
]


class Pair(NamedTuple):
    """A model's tokenizer, and transformers' over the same GGUF file."""

    name: str
    ours: Tokenizer
    theirs: Any


@pytest.fixture(scope="module", params=[SMOLLM, QWEN])
def pair(request: pytest.FixtureRequest) -> Pair:
    path = pull(request.param)
    return Pair(request.param, load_tokenizer(path), AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name))


def test_texts_agree(pair: Pair) -> None:
    for text in TEXTS:
        # transformers' reading of GGUF leaves out Qwen's NFC and SmolLM's digit rule, which their own tokenizer.json files have.
        if (pair.name == QWEN and "e\u0301" in text) or (pair.name == SMOLLM and "  1" in text):
            continue
        ids = pair.theirs.encode(text, add_special_tokens=False)
        assert pair.ours.encode(text, add_special=False, parse_special=True) == ids, text
        assert pair.ours.decode(ids, skip_special_tokens=False) == pair.theirs.decode(ids, skip_special_tokens=False)
        assert pair.ours.decode(ids) == pair.theirs.decode(ids, skip_special_tokens=True)


@pytest.mark.parametrize("messages", CHATS)
@pytest.mark.parametrize("tools", [None, TOOLS])
def test_chats_give_the_ids_of_transformers(
    pair: Pair, messages: list[dict[str, Any]], tools: list[dict[str, Any]] | None
) -> None:
    if pair.name == QWEN:
        messages = [{**message, "content": message["content"].replace("e\u0301", "é")} for message in messages]
    renderer = ChatRenderer(pair.ours)
    for prompt in (False, True):
        pieces = renderer.render(messages, ChatOptions(tools=tools, add_generation_prompt=prompt))
        expected = pair.theirs.apply_chat_template(messages, tools=tools, add_generation_prompt=prompt, return_dict=False)
        assert pair.ours.encode_pieces(pieces, False) == expected
        assert len(pieces) == 1


@pytest.mark.parametrize("name", [SMOLLM, QWEN])
def test_chat_content_stays_text(name: str) -> None:
    tokenizer = load_tokenizer(pull(name))
    renderer = ChatRenderer(tokenizer)

    def control_ids(content: str) -> list[int]:
        messages = [{"role": "system", "content": content}, {"role": "user", "content": content}]
        ids = tokenizer.encode_pieces(renderer.render(messages), False)
        assert tokenizer.decode(ids, skip_special_tokens=False).count(content) >= 2
        return [token_id for token_id in ids if token_id in tokenizer.special_ids]

    for text in tokenizer.control_texts:
        assert control_ids(f"x {text}{text} y") == control_ids("x y") == control_ids(text)


@pytest.mark.parametrize("name", [SMOLLM, QWEN, GEMMA])
def test_gguf_and_tokenizer_json_agree(name: str) -> None:
    """Saved as a tokenizer.json and loaded again by the folder path and by transformers, the vocabulary gives the same ids."""
    gguf = load_tokenizer(pull(name))
    with tempfile.TemporaryDirectory() as place:
        (Path(place) / "tokenizer.json").write_text(gguf.as_json(), encoding="utf-8")
        folder = load_tokenizer(Path(place))
    theirs = PreTrainedTokenizerFast(tokenizer_object=tokenizers.Tokenizer.from_str(gguf.as_json()))
    for text in [*TEXTS, *gguf.control_texts[:50]]:
        for parse_special in (False, True):
            ids = gguf.encode(text, add_special=False, parse_special=parse_special)
            assert folder.encode(text, add_special=False, parse_special=parse_special) == ids, text
        assert theirs.encode(text, add_special_tokens=False) == ids, text


@pytest.mark.parametrize(("name", "eos"), [(SMOLLM, (2, 0)), (QWEN, (151645, 151643)), (GEMMA, (1, 106))])
def test_facts_of_the_catalog(name: str, eos: tuple[int, ...]) -> None:
    tokenizer = load_tokenizer(pull(name))
    assert tokenizer.eos_token_ids == eos
    bos = [tokenizer.bos_token_id] if name == GEMMA else []
    assert tokenizer.encode("Hi", add_special=True, parse_special=True)[:-1] == bos
    assert tokenizer.encode("<bos>Hi", add_special=True, parse_special=True)[:-1].count(2) == (name == GEMMA)
    assert (tokenizer.chat_template is None) == (name == GEMMA)


def test_sentence_embedding_folder_agrees_with_its_gguf_cousin() -> None:
    """all-MiniLM's tokenizer.json and the BERT vocabulary stored as GGUF are the same uncased WordPiece."""
    folder = load_tokenizer(pull("all-minilm-l6-v2"))
    gguf = load_tokenizer(Path(__file__).parents[2] / "data" / "tokenizer-vectors" / "ggml-vocab-bert-bge.gguf")
    for text in TEXTS:
        ids = folder.encode(text, add_special=True, parse_special=False)
        assert gguf.encode(text, add_special=True, parse_special=False) == ids, text
        assert gguf.decode(ids) == folder.decode(ids)
