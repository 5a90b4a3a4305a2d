"""A tokenizer without a file: one id per byte, then a handful of control tokens.

For the null model and for tests. Invariant: ids 0..255 are the bytes; every text round-trips.
"""

from __future__ import annotations

from tokenizers import models

from sapwood.tokenizer.assembly import AddedToken, TokenizerParts
from sapwood.tokenizer.pieces import PieceKind, PieceRule, byte_alphabet
from sapwood.tokenizer.tokenizer import Tokenizer

CONTROL_TEXTS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
CHATML_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def byte_tokenizer() -> Tokenizer:
    """256 byte ids, then `CONTROL_TEXTS`; <|endoftext|> is the beginning of nothing and, with <|im_end|>, the end."""
    vocab = byte_alphabet()
    added = tuple(AddedToken(len(vocab) + rank, text, special=True) for rank, text in enumerate(CONTROL_TEXTS))
    vocab_with_control = vocab | {token.text: token.id for token in added}
    return Tokenizer(
        TokenizerParts(
            model=models.BPE(vocab=vocab_with_control, merges=[], cache_capacity=0),  # else it keeps whole texts, by the thousand
            rule=PieceRule(PieceKind.BYTE_LEVEL),
            added=added,
            vocab_size=len(vocab_with_control),
            pre_tokenizer={"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False},
            bos_token_id=added[0].id,
            eos_token_ids=(added[0].id, added[2].id),
            chat_templates={"default": CHATML_TEMPLATE},
        )
    )
