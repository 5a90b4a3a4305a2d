"""Architectures by name, and the one way to build a decoder from a checkpoint.

Knows names only. Invariant: an architecture that is not registered is an error that lists the known ones.
"""

from __future__ import annotations

from sapwood.layers.loader import WeightLoader
from sapwood.models.blocks import Decoder, Names
from sapwood.registry import Registry

ARCHITECTURES: Registry[Names] = Registry("architecture")


def load_decoder(load: WeightLoader, max_len: int) -> Decoder:
    """Load this rank's part of the model; raises ConfigError for an unknown architecture, WeightsError for a bad checkpoint."""
    return Decoder(load, ARCHITECTURES.get(load.config.architecture), max_len)
