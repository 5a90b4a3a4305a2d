"""A llama of a few thousand weights, which are drawn, with a vocabulary of bytes: small enough to be started on several ranks."""

from __future__ import annotations

import json
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers

EOS = "<|end|>"
CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": 257,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "rms_norm_eps": 1e-5,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
    "eos_token_id": 256,
    "torch_dtype": "float32",
}
OPTIONS = ("--load-format", "dummy", "--cpu-threads", "1", "--max-total-tokens", "16384")
ROUNDING = 1e-4
"""How much log-probabilities of the torch engine may differ with what else is in a batch."""


def write(folder: Path) -> Path:
    """A model folder without weights, for `--load-format dummy`."""
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(CONFIG))
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({**{letter: index for index, letter in enumerate(letters)}, EOS: len(letters)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([EOS])
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": EOS}))
    return folder
