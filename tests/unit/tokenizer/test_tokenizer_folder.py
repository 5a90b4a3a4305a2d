"""Tokenizers from a Hugging Face folder: agreement with the GGUF ones, neighbours' facts, and safety of plain text."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from vocabularies import NAMES, TEXTS, VECTORS, tiny_sentencepiece, vocabulary, write_folder

from sapwood.errors import WeightsError
from sapwood.tokenizer.byte_vocabulary import byte_tokenizer
from sapwood.tokenizer.load import load_tokenizer
from sapwood.tokenizer.tokenizer import Tokenizer

DECODERS: dict[str, Any] = {
    "bert-bge": {"type": "WordPiece", "prefix": "##", "cleanup": True},
    "gpt-2": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
    "llama-spm": {
        "type": "Sequence",
        "decoders": [
            {"type": "Replace", "pattern": {"String": "\u2581"}, "content": " "},
            {"type": "ByteFallback"},
            {"type": "Fuse"},
            {"type": "Strip", "content": " ", "start": 1, "stop": 0},
        ],
    },
}
DECODERS["phi-3"], DECODERS["qwen2"] = DECODERS["llama-spm"], DECODERS["gpt-2"]


def description(tokenizer: Tokenizer, **changes: Any) -> dict[str, Any]:
    return {**json.loads(tokenizer.as_json()), **changes}


@pytest.mark.parametrize("name", NAMES)
def test_folder_and_gguf_agree(name: str, tmp_path: Path) -> None:
    """The same vocabulary by either way: same ids, same text; and the same as the library's own encode and decode."""
    gguf = vocabulary(name)
    folder = load_tokenizer(write_folder(tmp_path, description(gguf, decoder=DECODERS[name])))
    library = tokenizers.Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    assert folder.vocab_size == gguf.vocab_size
    assert folder.special_ids == gguf.special_ids
    for text in TEXTS:
        for parse_special in (False, True):
            ids = gguf.encode(text, add_special=False, parse_special=parse_special)
            assert folder.encode(text, add_special=False, parse_special=parse_special) == ids, text
            for skip in (False, True):
                assert folder.decode(ids, skip) == gguf.decode(ids, skip) == library.decode(ids, skip_special_tokens=skip), text
        assert library.encode(text, add_special_tokens=False).ids == ids, text


def test_facts_come_from_the_neighbours(tmp_path: Path) -> None:
    post_processor = {
        "type": "TemplateProcessing",
        "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
        "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
        "special_tokens": {"<s>": {"id": "<s>", "ids": [1], "tokens": ["<s>"]}},
    }
    padding = {
        "strategy": {"Fixed": 32},
        "direction": "Right",
        "pad_to_multiple_of": None,
        "pad_id": 0,
        "pad_type_id": 0,
        "pad_token": "<unk>",
    }
    base = description(vocabulary("llama-spm"), post_processor=post_processor, decoder=DECODERS["llama-spm"], padding=padding)
    write_folder(
        tmp_path,
        base,
        tokenizer_config={
            "bos_token": {"content": "<s>"},
            "eos_token": "</s>",
            "chat_template": [{"name": "default", "template": "A"}, {"name": "tool_use", "template": "B"}],
            "added_tokens_decoder": {"32000": {"content": "<|extra|>", "special": True}},
        },
        generation_config={"eos_token_id": [2, 13]},
        config={"eos_token_id": 2},
    )
    tokenizer = load_tokenizer(tmp_path / "tokenizer.json")
    assert (tokenizer.bos_token_id, tokenizer.eos_token_ids) == (1, (2, 13))
    assert tokenizer.special_token_texts == {"bos_token": "<s>", "eos_token": "</s>"}
    assert tokenizer.chat_templates == {"default": "A", "tool_use": "B"}
    assert tokenizer.vocab_size == 32001
    assert tokenizer.encode("<|extra|>", add_special=True, parse_special=True) == [1, 32000]
    assert 32000 not in tokenizer.encode("<|extra|>", add_special=True, parse_special=False)
    (tmp_path / "chat_template.jinja").write_text("C")
    assert load_tokenizer(tmp_path).chat_template == "C"


def test_metaspace_puts_a_space_before_the_first_run_only(tmp_path: Path) -> None:
    metaspace = {"type": "Metaspace", "replacement": "\u2581", "prepend_scheme": "first", "split": False}
    path = write_folder(
        tmp_path, description(vocabulary("llama-spm"), normalizer=None, pre_tokenizer=metaspace, decoder=metaspace)
    )
    tokenizer = load_tokenizer(path)
    hello, inner = tokenizer.token_id("\u2581Hello"), tokenizer.token_id("Hello")
    assert tokenizer.encode("Hello</s>Hello", add_special=False, parse_special=True) == [hello, 2, inner]
    pieces = [("Hello", True), ("</s>", True), ("Hello", False), ("Hello", True)]
    assert tokenizer.encode_pieces(pieces, add_special=False) == [hello, 2, inner, inner]
    assert tokenizer.decode([hello, hello]) == "Hello Hello"


def test_no_merge_makes_a_control_token(tmp_path: Path) -> None:
    """A BPE file whose merges spell a control token: the merge is left out, the token still parses."""
    tiny = tiny_sentencepiece()
    spelled = description(tiny, decoder=DECODERS["llama-spm"])
    spelled["model"]["merges"] += [["<s", ">"], ["<", "s>"], ["</", "s>"]]
    merged = tokenizers.Tokenizer.from_str(json.dumps({**spelled, "added_tokens": []}))
    assert 1 in merged.encode("x<s>").ids, "the planted merge must be a real danger"
    folder = load_tokenizer(write_folder(tmp_path, spelled))
    for tokenizer in (tiny, folder):
        merges = json.loads(tokenizer.as_json())["model"]["merges"]
        assert not {"".join(pair) for pair in merges} & {"<s>", "</s>"}
        for text in ("<s>", "w<s>w", "</s></s>", " <s> </s>"):
            assert not {1, 2} & set(tokenizer.encode(text, add_special=False, parse_special=False))
            assert {1, 2} & set(tokenizer.encode(text, add_special=False, parse_special=True))


def test_words_that_are_control_tokens_are_cut(tmp_path: Path) -> None:
    """A model that looks up whole words finds control tokens that were left whole; plain text is cut inside them."""
    model = {"type": "WordLevel", "vocab": {"<end>": 0, "<": 1, "end>": 2, "hi": 3, "?": 4}, "unk_token": "?"}
    added = [{"id": 0, "content": "<end>", "special": True, "normalized": False}]
    for entry in added:
        entry |= {"single_word": False, "lstrip": False, "rstrip": False}
    splitting = {"type": "WhitespaceSplit"}
    base = description(byte_tokenizer(), model=model, added_tokens=added, pre_tokenizer=splitting, decoder=None)
    tokenizer = load_tokenizer(write_folder(tmp_path, base))
    assert tokenizer.encode("hi <end> hi", add_special=False, parse_special=True) == [3, 0, 3]
    assert tokenizer.encode("hi <end> hi", add_special=False, parse_special=False) == [3, 1, 2, 3]
    assert tokenizer.encode_batch(["<end>"], add_special=False, parse_special=False) == [[1, 2]]


def test_user_defined_tokens_parse_in_plain_text() -> None:
    tokenizer = tiny_sentencepiece()
    tool = tokenizer.token_id("[tool]")
    assert tokenizer.encode("a[tool]b", add_special=False, parse_special=False).count(tool) == 1


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (None, "no tokenizer.json"),
        ("{", "cannot read"),
        ("[]", "JSON object"),
        ('{"model": {"type": "Magic"}}', "cannot use"),
        ('{"added_tokens": [{"id": 0}]}', "usual form"),
        ('{"added_tokens": 7}', "usual form"),
    ],
)
def test_bad_folders_say_what_to_do(content: str | None, words: str, tmp_path: Path) -> None:
    if content is not None:
        (tmp_path / "tokenizer.json").write_text(content)
    with pytest.raises(WeightsError, match=words):
        load_tokenizer(tmp_path)


def test_unsupported_decoder_is_named(tmp_path: Path) -> None:
    path = write_folder(
        tmp_path,
        description(byte_tokenizer(), decoder={"type": "CTC", "pad_token": "", "word_delimiter_token": "|", "cleanup": True}),
    )
    with pytest.raises(WeightsError, match="CTC"):
        load_tokenizer(path)


def test_folder_with_gguf_files(tmp_path: Path) -> None:
    (tmp_path / "a.gguf").symlink_to(VECTORS / "ggml-vocab-llama-spm.gguf")
    assert load_tokenizer(tmp_path).vocab_size == 32000
    (tmp_path / "b.gguf").symlink_to(VECTORS / "ggml-vocab-gpt-2.gguf")
    with pytest.raises(WeightsError, match="several"):
        load_tokenizer(tmp_path)


def test_byte_tokenizer_round_trips() -> None:
    tokenizer = byte_tokenizer()
    for text in TEXTS:
        ids = tokenizer.encode(text, add_special=True, parse_special=False)
        assert bytes(ids) == text.encode()
        assert tokenizer.decode(ids) == text
    assert tokenizer.encode("<|im_end|>", add_special=False, parse_special=True) == [258]
