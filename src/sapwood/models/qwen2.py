"""Qwen 2 and 2.5: Llama with biases on the query, key and value projections."""

from sapwood.models.blocks import Names
from sapwood.models.registry import ARCHITECTURES

NAMES = ARCHITECTURES.register("qwen2")(Names())
