"""The vocabularies of the tokenizer tests, for the detokenizer's."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from sapwood.tokenizer.load import load_tokenizer
from sapwood.tokenizer.tokenizer import Tokenizer

VECTORS = Path(__file__).parents[2] / "data" / "tokenizer-vectors"
TEXTS = (
    "Hello, world! It's   3.14 o'clock.",
    "Größe e\u0301 日本語 한국어 សួស្តី 🦙 👩‍👩‍👧‍👦",
    "def f(x):\n\treturn x\n\n\n",
    "<s>a</s> b<|im_end|><|endoftext|>[SEP] c",
    "  ",
)


def names() -> list[str]:
    """The real vocabularies in the repository."""
    return sorted(path.stem.removeprefix("ggml-vocab-") for path in VECTORS.glob("*.gguf"))


@cache
def vocabulary(name: str) -> Tokenizer:
    """The tokenizer of one of them."""
    return load_tokenizer(VECTORS / f"ggml-vocab-{name}.gguf")
