"""Vocabularies for the tokenizer and detokenizer tests: the real ones that the repository carries, and tiny ones made here."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

from sapwood.tokenizer.gguf_vocabulary import parts_from_gguf
from sapwood.tokenizer.load import load_tokenizer
from sapwood.tokenizer.tokenizer import Tokenizer
from sapwood.weights.gguf import GgufFile

VECTORS = Path(__file__).parents[2] / "data" / "tokenizer-vectors"
NAMES = tuple(sorted(path.stem.removeprefix("ggml-vocab-") for path in VECTORS.glob("*.gguf")))
TEXTS = (
    "",
    " ",
    "Hello, world!",
    "  two   spaces\n\n\nand\t\ttabs \r\n",
    "it's 3.14159 o'clock; they'LL say 1234567890",
    "def f(x: int) -> int:\n    return x ** 2  # squared\n",
    "Größe, naïve, e\u0301te\u0301, Việt, Ελλάδα, Привет, мир",
    "日本語の文章 我想在apple工作 한국어 텍스트",
    "សួស្តី नमस्ते สวัสดี שלום مرحبا",
    "🦙 😶‍🌫️ 👩‍👩‍👧‍👦 🇳🇴 ✅",
    "\x00\x01\u200b\u00a0\ufeff end",
    "<|im_end|><|im_start|>system <s> </s> <unk> <|endoftext|> [CLS] [SEP] <0x0A> <eos> <bos>",
    "x<s>y</s>z<|user|><|end|>",
)


@cache
def gguf_metadata(name: str) -> dict[str, Any]:
    """The metadata of one of the vector files."""
    file = GgufFile(VECTORS / f"ggml-vocab-{name}.gguf")
    file.close()
    return file.metadata


@cache
def vocabulary(name: str) -> Tokenizer:
    """The tokenizer of one of the vector files."""
    return load_tokenizer(VECTORS / f"ggml-vocab-{name}.gguf")


def read_vectors(name: str) -> list[tuple[str, list[int]]]:
    """(text, expected ids) of a vector file."""
    base = VECTORS / f"ggml-vocab-{name}.gguf"
    texts = Path(f"{base}.inp").read_text(encoding="utf-8").split("\n__ggml_vocab_test__\n")
    lines = Path(f"{base}.out").read_text(encoding="utf-8").split("\n")
    assert len(texts) == len(lines)
    return [(text, [int(number) for number in line.split()]) for text, line in zip(texts, lines, strict=True)]


def tiny_sentencepiece(**changes: Any) -> Tokenizer:
    """Letters, a few merges, control tokens whose spelling the merges could make, and all bytes."""
    control = ["<unk>", "<s>", "</s>"]
    byte_texts = [f"<0x{byte:02X}>" for byte in range(256)]
    ordinary = ["\u2581", *"abcdehlorstw</>", "<s", "s>", "</", "he", "ll", "llo", "hello", "\u2581hello", "\u2581w"]
    texts = [*control, *byte_texts, *ordinary, "[tool]"]
    metadata = {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": texts,
        "tokenizer.ggml.token_type": [2, 3, 3, *[6] * 256, *[1] * len(ordinary), 4],
        "tokenizer.ggml.scores": [0.0] * 259 + [-float(rank) for rank in range(len(ordinary) + 1)],
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.unknown_token_id": 0,
    }
    return Tokenizer(parts_from_gguf(metadata | {f"tokenizer.ggml.{key}": value for key, value in changes.items()}))


def write_folder(folder: Path, description: dict[str, Any], **files: Any) -> Path:
    """A checkpoint folder with this tokenizer.json; `files` become NAME.json beside it."""
    (folder / "tokenizer.json").write_text(json.dumps(description), encoding="utf-8")
    for name, content in files.items():
        (folder / f"{name}.json").write_text(json.dumps(content), encoding="utf-8")
    return folder
