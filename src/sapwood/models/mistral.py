"""Mistral: Llama with a sliding window in every layer where the configuration sets one."""

from sapwood.models.blocks import Names
from sapwood.models.registry import ARCHITECTURES

NAMES = ARCHITECTURES.register("mistral")(Names())
