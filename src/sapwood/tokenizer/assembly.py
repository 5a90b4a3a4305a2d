"""A tokenizer's parts, whatever file they came from, and how Hugging Face's `tokenizers` is put together from them.

Does not know files or chat. Invariant: the two encoders share one model (and its memory); the plain one never matches a
control token in text, the parsing one does.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import tokenizers

from sapwood.errors import WeightsError
from sapwood.tokenizer.pieces import PieceRule

_SHELL_MODEL = {"type": "BPE", "vocab": {}, "merges": []}


@dataclass(frozen=True, slots=True)
class AddedToken:
    """A token that is matched in the text before the model sees it. `special` marks control tokens."""

    id: int
    text: str
    special: bool
    single_word: bool = False
    lstrip: bool = False
    rstrip: bool = False
    normalized: bool = False


@dataclass(frozen=True, slots=True)
class TokenizerParts:
    """Everything a `Tokenizer` is made of.

    `model` is a `tokenizers.models` object; `normalizer` and `pre_tokenizer` are entries in tokenizer.json's form. `prefix_ids`
    and `suffix_ids` surround a prompt when special tokens are asked for, `middle_ids` stand between two texts. `chat_templates`
    maps names to Jinja sources, "default" first among them.
    """

    model: Any
    rule: PieceRule
    added: tuple[AddedToken, ...]
    vocab_size: int
    normalizer: Mapping[str, Any] | None = None
    pre_tokenizer: Mapping[str, Any] | None = None
    prefix_ids: tuple[int, ...] = ()
    suffix_ids: tuple[int, ...] = ()
    middle_ids: tuple[int, ...] = ()
    bos_token_id: int | None = None
    eos_token_ids: tuple[int, ...] = ()
    chat_templates: Mapping[str, str] = field(default_factory=dict)


def build_encoder(parts: TokenizerParts, *, parses_special: bool, continues: bool = False) -> tokenizers.Tokenizer:
    """A Hugging Face tokenizer over `parts.model`; one that `continues` puts no space before its text.

    Raises WeightsError when an added token would get another id than the file gives it.
    """
    normalizer, pre_tokenizer = parts.normalizer, parts.pre_tokenizer
    if continues:
        pre_tokenizer = _without_first_prefix(pre_tokenizer)
    shell: dict[str, Any] = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [],
        "normalizer": normalizer,
        "pre_tokenizer": pre_tokenizer,
        "post_processor": None,
        "decoder": None,
        "model": _SHELL_MODEL,
    }
    encoder = tokenizers.Tokenizer.from_str(json.dumps(shell))
    encoder.model = parts.model
    ordered = sorted(parts.added, key=lambda token: token.id)
    encoder.add_tokens([_as_library_token(token) for token in ordered if token.text])
    for token in ordered:
        if token.text and encoder.token_to_id(token.text) != token.id:
            raise WeightsError(f"the tokenizer file gives {token.text!r} id {token.id}, which its vocabulary contradicts")
    encoder.encode_special_tokens = not parses_special
    return encoder


def prefixes_only_first(parts: TokenizerParts) -> bool:
    """Whether a space is put before the first run of a text but not before those that follow a control token."""
    return _without_first_prefix(parts.pre_tokenizer) != parts.pre_tokenizer


def _without_first_prefix(pre_tokenizer: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
    if pre_tokenizer is None:
        return None
    if pre_tokenizer.get("type") == "Sequence":
        return {**pre_tokenizer, "pretokenizers": [_without_first_prefix(part) for part in pre_tokenizer["pretokenizers"]]}
    if pre_tokenizer.get("type") == "Metaspace" and pre_tokenizer.get("prepend_scheme") == "first":
        return {**pre_tokenizer, "prepend_scheme": "never"}
    return pre_tokenizer


def _as_library_token(token: AddedToken) -> tokenizers.AddedToken:
    return tokenizers.AddedToken(
        token.text,
        single_word=token.single_word,
        lstrip=token.lstrip,
        rstrip=token.rstrip,
        normalized=token.normalized,
        special=token.special,
    )
