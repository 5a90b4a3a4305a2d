"""Filling in the middle: the prompt that the model sees, where it ends, and who refuses it."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from serverkit import House, ask, make_house
from tokenizers import models

from sapwood.messages.types import Submit, unpack_ids
from sapwood.server.app import create_app
from sapwood.tokenizer.assembly import AddedToken, TokenizerParts
from sapwood.tokenizer.byte_vocabulary import byte_tokenizer
from sapwood.tokenizer.fim import find_fim
from sapwood.tokenizer.pieces import PieceKind, PieceRule, byte_alphabet
from sapwood.tokenizer.tokenizer import Tokenizer

TEXTS = ("<|endoftext|>", "<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>", "<|fim_pad|>")
END, PREFIX, SUFFIX, MIDDLE, PAD = range(256, 261)
ROUTES = {"/v1/completions": "max_tokens", "/api/generate": "options"}


def code_tokenizer() -> Tokenizer:
    """Bytes, and the control tokens of a code model."""
    vocab = byte_alphabet() | {text: 256 + rank for rank, text in enumerate(TEXTS)}
    added = tuple(AddedToken(256 + rank, text, special=True) for rank, text in enumerate(TEXTS))
    pre_tokenizer = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False}
    return Tokenizer(
        TokenizerParts(
            model=models.BPE(vocab=vocab, merges=[]),
            rule=PieceRule(PieceKind.BYTE_LEVEL),
            added=added,
            vocab_size=len(vocab),
            pre_tokenizer=pre_tokenizer,
            bos_token_id=None,
            eos_token_ids=(END,),
            chat_templates={},
        )
    )


def code_house() -> House:
    house = make_house()
    tokenizer = code_tokenizer()
    house.backend.tokenizer = tokenizer
    house.frontend.limits = dataclasses.replace(house.frontend.limits, vocab_size=tokenizer.vocab_size)
    model = dataclasses.replace(house.context.model, vocabulary=tokenizer, fim=find_fim(tokenizer))
    context = dataclasses.replace(house.context, model=model)
    return House(house.backend, house.frontend, context, create_app(context))


def fill(house: House, path: str, **fields: Any) -> Any:
    limit = {"max_tokens": 4} if path == "/v1/completions" else {"options": {"num_predict": 4}, "stream": False}
    return ask(house, "POST", path, json={"model": "fake", **limit, **fields})


@pytest.mark.parametrize("path", ROUTES)
def test_the_model_sees_both_sides_of_the_gap(path: str) -> None:
    house = code_house()
    answer = fill(house, path, prompt="a<|fim_middle|>", suffix="b").json()
    [submit] = house.backend.sent_of(Submit)
    assert list(unpack_ids(submit.token_ids)) == [PREFIX, *b"a<|fim_middle|>", SUFFIX, *b"b", MIDDLE]
    assert submit.params.stop_token_ids == (END, PAD)
    assert (answer["choices"][0]["text"] if "choices" in answer else answer["response"]) == "Hell"


def test_several_gaps_and_an_echo() -> None:
    house = code_house()
    answer = fill(house, "/v1/completions", prompt=["x", ""], suffix="y", echo=True).json()
    assert [choice["text"] for choice in answer["choices"]] == ["xHell", "Hell"]
    assert list(unpack_ids(house.backend.sent_of(Submit)[1].token_ids)) == [PREFIX, SUFFIX, *b"y", MIDDLE]


@pytest.mark.parametrize("path", ROUTES)
def test_a_model_without_the_tokens_refuses(path: str) -> None:
    assert find_fim(byte_tokenizer()) is None
    response = fill(make_house(), path, prompt="a", suffix="b")
    assert response.status_code == 400 and "suffix" in response.text
    assert fill(make_house(), path, prompt="a", suffix="").status_code == 200


def test_what_does_not_go_with_a_suffix_is_named() -> None:
    for path, fields, name in (
        ("/v1/completions", {"prompt": [1, 2]}, "suffix"),
        ("/v1/completions", {"prompt": "a" * 1000}, "prompt"),
        ("/api/generate", {"prompt": "a", "system": "s"}, "system"),
        ("/api/generate", {"prompt": "a", "raw": True}, "raw"),
    ):
        response = fill(code_house(), path, suffix="b", **fields)
        assert response.status_code == 400 and name in response.text, response.text


def test_ollama_clients_are_told() -> None:
    assert ask(code_house(), "POST", "/api/show", json={"model": "fake"}).json()["capabilities"] == ["completion", "insert"]
