"""Filling in the middle: the control tokens by which a code model learns what is before and after the gap.

Knows the spellings of some families of vocabularies; does not know requests. Invariant: the texts around the gap stay text; only
the three tokens between them are control tokens.
"""

from __future__ import annotations

from dataclasses import dataclass

from sapwood.tokenizer.lookalikes import Pieces
from sapwood.tokenizer.tokenizer import Tokenizer

_SPELLINGS = (
    ("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"),  # Qwen, CodeGemma
    ("<fim_prefix>", "<fim_suffix>", "<fim_middle>"),  # StarCoder, SmolLM
    ("<fim-prefix>", "<fim-suffix>", "<fim-middle>"),  # SantaCoder
    ("<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>"),  # DeepSeek
)
_ENDS = ("<|endoftext|>", "<|fim_pad|>", "<|repo_name|>", "<|file_sep|>", "<file_sep>", "<|file_separator|>")
"""Tokens after which another file would begin: the gap is filled."""


@dataclass(frozen=True, slots=True)
class FimTokens:
    """The spellings of a vocabulary's tokens before the prefix, the suffix and the middle; `end_ids` end the middle."""

    prefix: str
    suffix: str
    middle: str
    end_ids: tuple[int, ...]

    def pieces(self, before: str, after: str) -> Pieces:
        """The prompt's pieces for `Tokenizer.encode_pieces`."""
        return [(self.prefix, True), (before, False), (self.suffix, True), (after, False), (self.middle, True)]


def find_fim(tokenizer: Tokenizer) -> FimTokens | None:
    """The tokens of this vocabulary; None when it has none."""
    for spellings in _SPELLINGS:
        if all(tokenizer.token_id(spelling) in tokenizer.special_ids for spelling in spellings):
            ends = {token_id for spelling in _ENDS if (token_id := tokenizer.token_id(spelling)) in tokenizer.special_ids}
            return FimTokens(*spellings, tuple(sorted(token_id for token_id in ends if token_id is not None)))
    return None
