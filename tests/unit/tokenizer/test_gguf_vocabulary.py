"""GGUF vocabularies that are unusual or damaged, and the table of pre-tokenizers."""

from __future__ import annotations

import json
from typing import Any

import pytest
import tokenizers
from vocabularies import TEXTS, gguf_metadata, tiny_sentencepiece

from sapwood.errors import WeightsError
from sapwood.tokenizer.gguf_vocabulary import parts_from_gguf
from sapwood.tokenizer.pieces import byte_alphabet
from sapwood.tokenizer.pretokenizers import PRE_TOKENIZERS
from sapwood.tokenizer.tokenizer import Tokenizer


def byte_level(**changes: Any) -> dict[str, Any]:
    texts = [*byte_alphabet(), "he", "<|end|>"]
    metadata = {"model": "gpt2", "pre": "gpt-2", "tokens": texts, "token_type": [1] * 257 + [3], "merges": ["h e"]}
    return {f"tokenizer.ggml.{key}": value for key, value in (metadata | changes).items()}


@pytest.mark.parametrize("name", PRE_TOKENIZERS)
def test_every_pre_tokenizer_loses_nothing(name: str) -> None:
    tokenizer = Tokenizer(parts_from_gguf(byte_level(pre=name)))
    for text in TEXTS:
        ids = tokenizer.encode(text, add_special=False, parse_special=False)
        assert tokenizer.decode(ids).replace("\u00e9", "e\u0301") == text.replace("\u00e9", "e\u0301")


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("gpt-2", ["It", "'s", " 12345", " a", "  ", " b"]),
        ("llama-bpe", ["It", "'s", " ", "123", "45", " a", "  ", " b"]),
        ("qwen2", ["It", "'s", " ", "1", "2", "3", "4", "5", " a", "  ", " b"]),
        ("smollm", ["It", "'s", " ", "1", "2", "3", "4", "5", " a", "  ", " b"]),
        ("gpt-4o", ["It's", " ", "123", "45", " a", "  ", " b"]),
        ("tekken", ["It", "'s", " ", "1", "2", "3", "4", "5", " a", "  ", " b"]),
    ],
)
def test_words_of_well_known_pre_tokenizers(name: str, words: list[str]) -> None:
    shell = {"version": "1.0", "added_tokens": [], "normalizer": None, "post_processor": None, "decoder": None}
    model = {"type": "BPE", "vocab": {}, "merges": []}
    pre_tokenizer = PRE_TOKENIZERS[name].as_json()
    pre_tokenizer["pretokenizers"].pop()  # without the byte alphabet the words stay readable
    library = tokenizers.Tokenizer.from_str(json.dumps({**shell, "model": model, "pre_tokenizer": pre_tokenizer}))
    assert [word for word, _ in library.pre_tokenizer.pre_tokenize_str("It's 12345 a   b")] == words


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"pre": "qwen7"}, "known: .*smollm"),
        ({"model": "rwkv"}, "supported: bert, gpt2, llama"),
        ({"model": None}, "not supported"),
        ({"tokens": []}, "no tokenizer"),
        ({"tokens": None}, "no tokenizer"),
        ({"token_type": [1]}, "do not match"),
        ({"tokens": ["a"] * 258}, "twice"),
        ({"merges": ["he"]}, "not a pair"),
        ({"merges": ["h zz"]}, "'hzz'|'zz'"),
        ({"merges": [1]}, "damaged"),
        ({"merges": 7}, "damaged"),
        ({"tokens": [1, 2], "token_type": [1, 1]}, "damaged"),
        ({"pre": ["gpt-2"]}, "damaged"),
    ],
)
def test_damaged_metadata_is_explained(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(WeightsError, match=words):
        parts_from_gguf(byte_level(**changes))


def test_ids_outside_the_vocabulary_are_no_tokens() -> None:
    parts = parts_from_gguf(byte_level(bos_token_id=9999, eos_token_id=257, add_bos_token=True))
    assert (parts.bos_token_id, parts.prefix_ids, parts.eos_token_ids) == (None, (), (257,))


def test_flags_decide_what_surrounds_a_prompt() -> None:
    with_both = Tokenizer(parts_from_gguf(byte_level(bos_token_id=257, eos_token_id=257, add_bos_token=True, add_eos_token=True)))
    assert with_both.encode("he", add_special=True, parse_special=True) == [257, 256, 257]
    assert tiny_sentencepiece(add_bos_token=False).encode("he", add_special=True, parse_special=True)[:1] != [1]


def test_space_prefix_can_be_off() -> None:
    tokenizer = tiny_sentencepiece(add_space_prefix=False)
    ids = tokenizer.encode("hello hello", add_special=False, parse_special=True)
    assert [tokenizer.token_text(token_id) for token_id in ids] == ["hello", " hello"]
    assert tokenizer.decode(ids[1:]) == " hello"


def test_texts_that_are_not_unicode_are_escaped() -> None:
    texts = [*byte_alphabet(), "\udcff\udcfe", "<|end|>"]
    tokenizer = Tokenizer(parts_from_gguf(byte_level(tokens=texts, merges=[])))
    assert tokenizer.encode("a", add_special=False, parse_special=False) == [texts.index("a")]


def test_named_templates_are_found() -> None:
    metadata = byte_level() | {"tokenizer.chat_template": "A", "tokenizer.chat_template.tool_use": "B"}
    assert parts_from_gguf(metadata).chat_templates == {"default": "A", "tool_use": "B"}
    assert parts_from_gguf(gguf_metadata("gpt-2")).chat_templates == {}
