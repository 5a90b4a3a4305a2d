"""From token ids to bytes: the piece that each id adds to a text, given what went before it.

Owns the three decoding rules (byte-level, SentencePiece, WordPiece). Does not know UTF-8 boundaries or streams. Invariant: the
bytes of a run of ids are the concatenation of its pieces, and a piece depends on at most one bit or two of what precedes it.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")
_SPACE_MARK = "\u2581"
_GLUED_PUNCTUATION = frozenset({".", "?", "!", ","})


class PieceKind(Enum):
    """How a vocabulary spells bytes and spaces."""

    BYTE_LEVEL = "byte level"
    SENTENCEPIECE = "sentencepiece"
    WORDPIECE = "wordpiece"
    CHARACTERS = "characters"


@dataclass(frozen=True, slots=True)
class PieceRule:
    """`strips_first_space`: a text's first piece loses one leading space (the encoder had put it there).

    `glues_punctuation`: WordPiece writes full stops, commas, question and exclamation marks without a space before them.
    `word_end`: a suffix that stands for a space after the piece (older BPE vocabularies), or the empty string.
    """

    kind: PieceKind
    strips_first_space: bool = False
    glues_punctuation: bool = True
    subword_prefix: str = "##"
    word_end: str = ""


def byte_alphabet() -> dict[str, int]:
    """The printable character that stands for each byte in byte-level vocabularies, mapped back to the byte."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    moved = [byte for byte in range(0x100) if byte not in set(printable)]
    return {chr(byte): byte for byte in printable} | {chr(0x100 + rank): byte for rank, byte in enumerate(moved)}


class PieceTable:
    """Piece bytes by id, computed on first use; ids outside the vocabulary have none."""

    def __init__(
        self,
        text_of: Callable[[int], str | None],
        rule: PieceRule,
        vocab_size: int,
        added_ids: frozenset[int],
        special_ids: frozenset[int],
    ) -> None:
        """`text_of` gives the vocabulary's spelling; `added_ids` spell plain text; `special_ids` are control tokens."""
        self._text_of = text_of
        self._vocab_size = vocab_size
        self._rule = rule
        self._added_ids = added_ids
        self._alphabet = byte_alphabet()
        self._pieces: dict[int, bytes] = {}
        self.special_ids = special_ids

    @property
    def separates_words(self) -> bool:
        """Whether a piece may carry a space that is not in its token (WordPiece)."""
        return self._rule.kind is PieceKind.WORDPIECE

    def piece(self, token_id: int) -> bytes:
        """What the id adds to a text that has already begun."""
        piece = self._pieces.get(token_id)
        if piece is not None:
            return piece
        if not 0 <= token_id < self._vocab_size:
            return b""
        return self._pieces.setdefault(token_id, self._spell(token_id))

    def first_piece(self, token_id: int) -> bytes:
        """What the id gives as a text's first piece."""
        piece = self.piece(token_id)
        if self.separates_words:
            return (self._text_of(token_id) or "").encode() if piece else b""
        if self._rule.strips_first_space and piece.startswith(b" "):
            return piece[1:]
        return piece

    def own_bytes(self, token_id: int) -> bytes:
        """The bytes of the token itself, without the space that separates words."""
        piece = self.piece(token_id)
        return piece.removeprefix(b" ") if self.separates_words else piece

    def _spell(self, token_id: int) -> bytes:
        text = self._text_of(token_id)
        if text is None:
            return b""
        if self.separates_words:
            return self._spell_word(text)
        if token_id in self._added_ids:
            return text.encode()
        if self._rule.kind is PieceKind.BYTE_LEVEL:
            values = [self._alphabet.get(char) for char in text]
            known = bytes(value for value in values if value is not None)
            return known if len(known) == len(values) else text.encode()
        return self._spell_characters(text)

    def _spell_characters(self, text: str) -> bytes:
        if self._rule.kind is PieceKind.SENTENCEPIECE:
            byte = _BYTE_TOKEN.fullmatch(text)
            return bytes.fromhex(byte[1]) if byte else text.replace(_SPACE_MARK, " ").encode()
        if self._rule.word_end and text.endswith(self._rule.word_end):
            text = text.removesuffix(self._rule.word_end) + " "
        return text.encode()

    def _spell_word(self, text: str) -> bytes:
        prefix = self._rule.subword_prefix
        if text.startswith(prefix) and text != prefix:
            return text.removeprefix(prefix).encode()
        if self._rule.glues_punctuation and text in _GLUED_PUNCTUATION:
            return text.encode()
        return f" {text}".encode()


class PieceJoiner:
    """Walks along a run of ids and gives each one's piece; holds the little that a piece depends on."""

    def __init__(self, table: PieceTable, skip_special_tokens: bool, spaces_between_special_tokens: bool = True) -> None:
        self._piece = table.piece
        self._first_piece = table.first_piece
        self._special_ids = table.special_ids
        self._hidden_ids = table.special_ids if skip_special_tokens else frozenset[int]()
        self._glues_special = table.separates_words and not spaces_between_special_tokens
        self._at_start = True
        self._after_special = False

    def next(self, token_id: int) -> bytes:
        """The bytes that `token_id` adds (empty for a skipped control token)."""
        if token_id in self._hidden_ids:
            return b""
        piece = self._piece(token_id)
        if self._at_start and piece:
            self._at_start = False
            piece = self._first_piece(token_id)
        if self._glues_special:
            piece = self._glue(token_id, piece)
        return piece

    def _glue(self, token_id: int, piece: bytes) -> bytes:
        is_special = token_id in self._special_ids
        glued = piece.removeprefix(b" ") if is_special and self._after_special else piece
        self._after_special = is_special
        return glued
