"""Tiny random models of every architecture, built and run by transformers: the oracle for logits."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import transformers

VOCAB_SIZE = 97
MAX_POSITION = 128
_SIZES = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": MAX_POSITION,
    "tie_word_embeddings": False,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
_LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 500.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
_YARN = {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 32}


@dataclass(frozen=True)
class TinyModel:
    """A transformers configuration class by prefix, and what the model has beyond the common sizes."""

    kind: str
    options: dict[str, Any] = field(default_factory=dict)


TINY_MODELS = {
    "llama": TinyModel("Llama"),
    "llama-tied": TinyModel("Llama", {"tie_word_embeddings": True}),
    "llama-biases": TinyModel("Llama", {"attention_bias": True, "mlp_bias": True}),
    "llama-multi-head": TinyModel("Llama", {"num_key_value_heads": 6}),
    "llama-linear": TinyModel("Llama", {"rope_parameters": {"rope_type": "linear", "rope_theta": 1000.0, "factor": 3.0}}),
    "llama-llama3": TinyModel("Llama", {"rope_parameters": _LLAMA3}),
    "llama-yarn": TinyModel("Llama", {"rope_parameters": _YARN}),
    "mistral": TinyModel("Mistral", {"sliding_window": None}),
    "mistral-window": TinyModel("Mistral", {"sliding_window": 9}),
    "qwen2": TinyModel("Qwen2"),
    "qwen2-window": TinyModel("Qwen2", {"use_sliding_window": True, "sliding_window": 7, "max_window_layers": 1}),
    "qwen3": TinyModel("Qwen3", {"head_dim": 16}),
    "qwen3-yarn": TinyModel("Qwen3", {"head_dim": 16, "rope_parameters": _YARN, "tie_word_embeddings": True}),
    "gemma3": TinyModel("Gemma3", {"sliding_window": 8, "tie_word_embeddings": True, "query_pre_attn_scalar": 12}),
    "gemma3-softcaps": TinyModel(
        "Gemma3",
        {
            "sliding_window": 16,
            "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
            "tie_word_embeddings": True,
            "query_pre_attn_scalar": 1,
            "attn_logit_softcapping": 3.0,
            "final_logit_softcapping": 5.0,
        },
    ),
}


def build(name: str, folder: Path) -> transformers.PreTrainedModel:
    """The model called `name`, with every parameter random (biases and norms too), saved in `folder`."""
    tiny = TINY_MODELS[name]
    is_gemma = tiny.kind == "Gemma3"
    config_class = getattr(transformers, f"{tiny.kind}TextConfig" if is_gemma else f"{tiny.kind}Config")
    model_class = getattr(transformers, f"{tiny.kind}ForCausalLM")
    config = config_class(**(_SIZES | tiny.options), attn_implementation="eager")
    torch.manual_seed(sum(name.encode()))
    model = model_class(config).eval().float()
    with torch.no_grad():
        for parameter_name, parameter in model.named_parameters():
            is_matrix = parameter.dim() == 2 and "embed" not in parameter_name
            parameter.normal_(0.0, parameter.shape[-1] ** -0.5 if is_matrix else 0.3)
            if "norm" in parameter_name and not is_gemma:
                parameter.add_(1.0)
    model.save_pretrained(folder)
    return model


@torch.inference_mode()
def logits_of(model: transformers.PreTrainedModel, token_ids: list[int]) -> torch.Tensor:
    """Logits after every token, [len(token_ids), VOCAB_SIZE], in one pass.

    transformers' Gemma3 has the attention's softcap in its configuration but does not pass it on; its attention takes it.
    """
    softcap = getattr(model.config, "attn_logit_softcapping", None)
    extra = {} if softcap is None else {"softcap": softcap}
    return model(torch.tensor([token_ids]), use_cache=False, **extra).logits[0].float()
