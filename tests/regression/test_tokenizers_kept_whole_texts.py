"""Vocabularies that do not cut a text into words filled the library's cache of words with 10,000 prompts, tens of megabytes."""

from __future__ import annotations

import random

import psutil

from sapwood.tokenizer.byte_vocabulary import byte_tokenizer
from sapwood.tokenizer.gguf_vocabulary import parts_from_gguf
from sapwood.tokenizer.tokenizer import Tokenizer

NUM_TEXTS, MAX_GROWTH_BYTES = 4000, 6 << 20


def sentencepiece() -> Tokenizer:
    texts = ["<unk>", *(f"<0x{byte:02X}>" for byte in range(256)), "\u2581", *"abcdefgh"]
    metadata = {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": texts,
        "tokenizer.ggml.token_type": [2, *[6] * 256, *[1] * 9],
        "tokenizer.ggml.scores": [0.0] * len(texts),
        "tokenizer.ggml.unknown_token_id": 0,
    }
    return Tokenizer(parts_from_gguf(metadata))


def test_many_prompts_leave_nothing_behind() -> None:
    dice, process = random.Random(1), psutil.Process()
    for tokenizer in (byte_tokenizer(), sentencepiece()):
        sizes = []
        for _ in range(2):
            sizes.append(process.memory_info().rss)
            for _ in range(NUM_TEXTS):
                text = "".join(dice.choices("abcdefgh", k=240))
                tokenizer.encode(text, add_special=False, parse_special=False)
        sizes.append(process.memory_info().rss)
        assert sizes[-1] - sizes[0] < MAX_GROWTH_BYTES
