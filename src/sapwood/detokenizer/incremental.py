"""One request's ids to text, a token at a time.

Owns the UTF-8 boundary: bytes wait until their character is complete. Does not know stop strings. Invariant: the concatenated
texts, `finish` included, equal one decode of all the ids, however they were grouped; each token costs constant time.
"""

from __future__ import annotations

import codecs
from collections.abc import Iterable
from dataclasses import dataclass

from sapwood.tokenizer.pieces import PieceJoiner
from sapwood.tokenizer.tokenizer import Tokenizer


class IncrementalDecoder:
    """Decodes completion ids that follow `context_ids` (the prompt's tail), whose own text is not given out. `_is_inside`: a
    character has begun.

    A text's first piece loses the space that the encoder put before it; with any visible token in the context, the completion
    does not begin a text.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        context_ids: Iterable[int] = (),
        skip_special_tokens: bool = True,
        spaces_between_special_tokens: bool = True,
    ) -> None:
        self._joiner = PieceJoiner(tokenizer.pieces, skip_special_tokens, spaces_between_special_tokens)
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._is_inside = False
        for token_id in context_ids:
            self.push(token_id)

    def push(self, token_id: int) -> str:
        """The text that this id completes; empty while a character is incomplete."""
        piece = self._joiner.next(token_id)
        if not self._is_inside and piece.isascii():
            return piece.decode("ascii")
        text = self._decoder.decode(piece)
        self._is_inside = bool(self._decoder.getstate()[0])
        return text

    def finish(self) -> str:
        """U+FFFD for the bytes of a character that never came to its end."""
        return self._decoder.decode(b"", True)


@dataclass(frozen=True, slots=True)
class TokenSpan:
    """The text that one token completed, and where in the text it starts (characters)."""

    text: str
    offset: int


def token_spans(
    tokenizer: Tokenizer,
    token_ids: Iterable[int],
    context_ids: Iterable[int] = (),
    first_offset: int = 0,
    skip_special_tokens: bool = True,
) -> list[TokenSpan]:
    """Where each of `token_ids` lies in the text that starts at `first_offset`; a token inside a character spans nothing."""
    decoder = IncrementalDecoder(tokenizer, context_ids, skip_special_tokens)
    spans: list[TokenSpan] = []
    offset = first_offset
    for token_id in token_ids:
        text = decoder.push(token_id)
        spans.append(TokenSpan(text, offset))
        offset += len(text)
    return spans
