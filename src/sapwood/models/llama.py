"""Llama 2 and 3, SmolLM2 and their kin: the plain case, with biases and rotary scaling as the configuration says."""

from sapwood.models.blocks import Names
from sapwood.models.registry import ARCHITECTURES

NAMES = ARCHITECTURES.register("llama")(Names())
