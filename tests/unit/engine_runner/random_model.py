"""A tiny Llama whose tensors are made up from their names: a checkpoint without files, and engines around it."""

from __future__ import annotations

import zlib

import torch
from torch import Tensor

from sapwood.core.model_config import LayerKind, ModelConfig, RopeConfig
from sapwood.distributed.group import SoloGroup
from sapwood.engine.lifecycle import EngineOptions, create_engine
from sapwood.engine.runner import TorchEngine

VOCAB_SIZE, HIDDEN, WIDTH, HEAD_DIM = 50, 16, 24, 4
CONFIG = ModelConfig(
    architecture="llama",
    vocab_size=VOCAB_SIZE,
    hidden_size=HIDDEN,
    intermediate_size=WIDTH,
    num_heads=4,
    num_kv_heads=2,
    head_dim=HEAD_DIM,
    layers=(LayerKind(0, RopeConfig("default", 100.0)), LayerKind(5, RopeConfig("default", 100.0))),
    max_position=64,
    norm_eps=1e-6,
    activation="silu",
    tie_embeddings=False,
    qkv_bias=True,
    output_bias=False,
    mlp_bias=False,
    qk_norm=False,
    post_norms=False,
    norm_plus_one=False,
    embedding_scale=1.0,
    attention_scale=0.5,
    attention_softcap=0.0,
    logit_softcap=0.0,
    eos_token_ids=(2,),
    bos_token_id=1,
    torch_dtype="bfloat16",
)
_SHAPES = {
    "embed_tokens.weight": (VOCAB_SIZE, HIDDEN),
    "lm_head.weight": (VOCAB_SIZE, HIDDEN),
    "q_proj.weight": (16, HIDDEN),
    "k_proj.weight": (8, HIDDEN),
    "v_proj.weight": (8, HIDDEN),
    "q_proj.bias": (16,),
    "k_proj.bias": (8,),
    "v_proj.bias": (8,),
    "o_proj.weight": (HIDDEN, 16),
    "gate_proj.weight": (WIDTH, HIDDEN),
    "up_proj.weight": (WIDTH, HIDDEN),
    "down_proj.weight": (HIDDEN, WIDTH),
}


class RandomCheckpoint:
    """The same name always gives the same tensor; norms are vectors of the hidden size."""

    def __init__(self, config: ModelConfig = CONFIG) -> None:
        self.config = config

    def tensor(self, name: str, rows: slice | None = None, cols: slice | None = None) -> Tensor:
        shape = next((shape for suffix, shape in _SHAPES.items() if name.endswith(suffix)), (HIDDEN,))
        generator = torch.Generator().manual_seed(zlib.crc32(name.encode()))
        tensor = torch.randn(shape, generator=generator) * 0.4
        if len(shape) == 1 and "bias" not in name:
            tensor += 1.0
        tensor = tensor[rows] if rows is not None else tensor
        return tensor[:, cols] if cols is not None else tensor


def make_engine(**changes: object) -> TorchEngine:
    """An engine of 4 slots, 64 positions and 40 pages of 4 tokens, on the CPU."""
    settings = {"num_slots": 4, "max_len": 64, "num_pages": 40, "page_size": 4, "device": "cpu"} | changes
    return create_engine(EngineOptions(**settings), RandomCheckpoint(), SoloGroup())  # type: ignore[arg-type]
