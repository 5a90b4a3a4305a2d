"""Qwen 3: Llama with a norm on every query and key head (`self_attn.q_norm`, `self_attn.k_norm`) and no biases."""

from sapwood.models.blocks import Names
from sapwood.models.registry import ARCHITECTURES

NAMES = ARCHITECTURES.register("qwen3")(Names())
