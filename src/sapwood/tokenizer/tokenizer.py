"""`Tokenizer`: text to ids and back, for one vocabulary.

Composes Hugging Face's `tokenizers` (a parsing and a plain encoder over one model) with the piece table. Does not know
requests or streams. Invariant: with `parse_special=False` no text, whatever it spells, gives a control token's id.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from typing import Any

import tokenizers

from sapwood.tokenizer.assembly import TokenizerParts, build_encoder, prefixes_only_first
from sapwood.tokenizer.frame import PromptFrame
from sapwood.tokenizer.pieces import PieceJoiner, PieceTable
from sapwood.tokenizer.text import valid_text

LONG_TEXT_CHARS = 2048
"""From this length on a single text is encoded with the interpreter lock released."""


class Tokenizer:
    """Encodes and decodes; immutable, so one instance serves any number of threads."""

    def __init__(self, parts: TokenizerParts) -> None:
        special = [token for token in parts.added if token.special]
        self.vocab_size = parts.vocab_size
        self.bos_token_id = parts.bos_token_id
        self.eos_token_ids = parts.eos_token_ids
        self.special_ids = frozenset(token.id for token in special)
        self.control_ids: Mapping[str, int] = {token.text: token.id for token in special if token.text}
        self.control_texts = tuple(token.text for token in special if token.text)
        self.chat_templates: Mapping[str, str] = dict(parts.chat_templates)
        self._parts = parts
        self._parsing = build_encoder(parts, parses_special=True)
        self._plain = build_encoder(parts, parses_special=False)
        self._inner_parsing, self._inner_plain = self._parsing, self._plain
        if prefixes_only_first(parts):
            self._inner_parsing = build_encoder(parts, parses_special=True, continues=True)
            self._inner_plain = build_encoder(parts, parses_special=False, continues=True)
        self._leaks = _leaking_texts(self._plain, special)
        added_ids = frozenset(token.id for token in parts.added)
        self.pieces = PieceTable(self._parsing.id_to_token, parts.rule, parts.vocab_size, added_ids, self.special_ids)

    @property
    def chat_template(self) -> str | None:
        """The default chat template's Jinja source, if the model has one."""
        return self.chat_templates.get("default")

    @property
    def frame(self) -> PromptFrame:
        """What surrounds a prompt when special tokens are asked for."""
        return PromptFrame(self._parts.prefix_ids, self._parts.middle_ids, self._parts.suffix_ids)

    @property
    def special_token_texts(self) -> dict[str, str]:
        """`bos_token` and `eos_token` as chat templates expect them; absent ones are left out."""
        ids = {"bos_token": self.bos_token_id, "eos_token": next(iter(self.eos_token_ids), None)}
        return {name: self._spelling(token_id) for name, token_id in ids.items() if token_id is not None}

    def encode(self, text: str, *, add_special: bool, parse_special: bool) -> list[int]:
        """The ids of `text`; `parse_special` says whether control tokens spelled in it count as such."""
        return self.encode_pieces([(text, parse_special)], add_special)

    def encode_batch(self, texts: Sequence[str], *, add_special: bool, parse_special: bool) -> list[list[int]]:
        """`encode` of many texts, in parallel and without the interpreter lock."""
        if self._leaks is not None and not parse_special:
            return [self.encode(text, add_special=add_special, parse_special=False) for text in texts]
        encoder = self._parsing if parse_special else self._plain
        encodings = encoder.encode_batch_fast([valid_text(text) for text in texts], add_special_tokens=False)
        return [self._surround(encoding.ids) if add_special else encoding.ids for encoding in encodings]

    def encode_pieces(self, pieces: Sequence[tuple[str, bool]], add_special: bool) -> list[int]:
        """The ids of one prompt given as (text, parse_special) runs; a run's end is always a token's end."""
        ids: list[int] = []
        for index, (text, parse_special) in enumerate(pieces):
            ids += self._encode_run(text, parse_special, first=index == 0)
        return self._surround(ids) if add_special else ids

    def decode(
        self, token_ids: Iterable[int], skip_special_tokens: bool = True, spaces_between_special_tokens: bool = True
    ) -> str:
        """The text of the ids; bytes that are not UTF-8 become U+FFFD, ids outside the vocabulary give nothing."""
        joiner = PieceJoiner(self.pieces, skip_special_tokens, spaces_between_special_tokens)
        return b"".join(map(joiner.next, token_ids)).decode("utf-8", "replace")

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes of one id: for byte tokens a single byte, for spaces a space; empty outside the vocabulary."""
        return self.pieces.own_bytes(token_id)

    def token_text(self, token_id: int) -> str:
        """The text of one id on its own; U+FFFD where its bytes are not whole characters."""
        return self.token_bytes(token_id).decode("utf-8", "replace")

    def token_id(self, spelling: str) -> int | None:
        """The id of the vocabulary's entry with this exact spelling."""
        token_id: int | None = self._parsing.token_to_id(spelling)
        return token_id

    def as_json(self) -> str:
        """The parsing encoder in tokenizer.json's format (without decoder and post-processor)."""
        return str(self._parsing.to_str())

    def _encode_run(self, text: str, parse_special: bool, first: bool) -> list[int]:
        if parse_special:
            return _run(self._parsing if first else self._inner_parsing, text)
        encoder = self._plain if first else self._inner_plain
        if self._leaks is None:
            return _run(encoder, text)
        return list(chain.from_iterable(_run(encoder, part) for part in _cut_inside(self._leaks, text)))

    def _surround(self, ids: list[int]) -> list[int]:
        prefix, suffix = list(self._parts.prefix_ids), list(self._parts.suffix_ids)
        if prefix and ids[: len(prefix)] == prefix:
            prefix = []
        return [*prefix, *ids, *suffix]

    def _spelling(self, token_id: int) -> str:
        return self._parsing.id_to_token(token_id) or ""


def _run(encoder: tokenizers.Tokenizer, text: str) -> list[int]:
    if not text:
        return []
    if len(text) >= LONG_TEXT_CHARS:
        ids: list[int] = encoder.encode_batch_fast([valid_text(text)], add_special_tokens=False)[0].ids
    else:
        ids = encoder.encode(valid_text(text), add_special_tokens=False).ids
    return ids


def _leaking_texts(plain: tokenizers.Tokenizer, special: Sequence[Any]) -> re.Pattern[str] | None:
    """A pattern of the control texts that the model's own rules would turn into their ids; None when there are none."""
    encodings = plain.encode_batch_fast([token.text for token in special], add_special_tokens=False)
    leaks = [token.text for token, encoding in zip(special, encodings, strict=True) if token.text and token.id in encoding.ids]
    leaks.sort(key=len, reverse=True)
    return re.compile("|".join(map(re.escape, leaks))) if leaks else None


def _cut_inside(pattern: re.Pattern[str], text: str) -> list[str]:
    """`text` in parts such that no match of `pattern` lies within one of them."""
    borders = [0, *(match.start() + 1 for match in pattern.finditer(text)), len(text)]
    return [text[start:end] for start, end in zip(borders, borders[1:], strict=False)]
