"""Tiny random encoders, classifiers and decoders for vectors, made by transformers, with a real word-piece vocabulary."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import tokenizers
import torch
import transformers

LETTERS = "abcdefghijklmnopqrstuvwxyz"
WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *LETTERS, *(f"##{letter}" for letter in LETTERS)]
WORDS += ["the", "sun", "is", "warm", "rain", "falls", "on", "old", "roof", "who", "lives", "here", ".", "?", ","]
SIZES: dict[str, Any] = {
    "vocab_size": len(WORDS),
    "hidden_size": 32,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "intermediate_size": 56,
    "max_position_embeddings": 66,
    "pad_token_id": 0,
}
TEXTS = [
    "the sun is warm",
    "rain falls on the old roof.",
    "who lives here?",
    "a",
    "the old sun, the old rain, the old roof: who lives here when rain falls and the sun is warm?",
]


def save_tokenizer(folder: Path, *, is_roberta: bool = False) -> transformers.PreTrainedTokenizerFast:
    """A word-piece tokenizer with BERT's frame (or RoBERTa's: two separators between two texts), saved in `folder`."""
    library = tokenizers.Tokenizer(tokenizers.models.WordPiece({word: i for i, word in enumerate(WORDS)}, unk_token="[UNK]"))
    library.normalizer = tokenizers.normalizers.BertNormalizer()
    library.pre_tokenizer = tokenizers.pre_tokenizers.BertPreTokenizer()
    library.decoder = tokenizers.decoders.WordPiece()
    ends = [("[CLS]", 2), ("[SEP]", 3)]
    pair = "[CLS] $A [SEP] [SEP] $B [SEP]" if is_roberta else "[CLS] $A [SEP] $B:1 [SEP]:1"
    library.post_processor = tokenizers.processors.TemplateProcessing(single="[CLS] $A [SEP]", pair=pair, special_tokens=ends)
    fast = transformers.PreTrainedTokenizerFast(
        tokenizer_object=library,
        unk_token="[UNK]", pad_token="[PAD]", cls_token="[CLS]", sep_token="[SEP]", mask_token="[MASK]",
        model_input_names=["input_ids", "attention_mask"] if is_roberta else ["input_ids", "token_type_ids", "attention_mask"],
    )  # fmt: skip
    fast.save_pretrained(folder)
    return fast


def save_encoder(folder: Path, kind: str, **options: Any) -> transformers.PreTrainedModel:
    """A random model of class transformers.`kind` (BertModel, RobertaForSequenceClassification, …), saved in `folder`."""
    family = kind.removesuffix("Model").removesuffix("ForSequenceClassification")
    config = getattr(transformers, f"{family}Config")(**{**SIZES, **options}, attn_implementation="eager")
    torch.manual_seed(len(kind))
    model = getattr(transformers, kind)(config).eval().float()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.normal_(0.0, 0.3 if "embed" in name or parameter.dim() == 1 else parameter.shape[-1] ** -0.5)
            if "LayerNorm.weight" in name:
                parameter.add_(1.0)
    model.save_pretrained(folder)
    return model


def save_pooling(folder: Path, mode: str) -> None:
    """What sentence-transformers writes about pooling."""
    (folder / "1_Pooling").mkdir()
    modes = {"pooling_mode_cls_token": False, "pooling_mode_mean_tokens": False, "pooling_mode_lasttoken": False, mode: True}
    (folder / "1_Pooling" / "config.json").write_text(json.dumps({"word_embedding_dimension": 32, **modes}))


def cosine(first: Any, second: Any) -> float:
    """Of two vectors."""
    a, b = torch.as_tensor(first, dtype=torch.float64), torch.as_tensor(second, dtype=torch.float64)
    return float(a @ b / a.norm() / b.norm())
