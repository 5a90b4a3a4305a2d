"""What a request that makes no tokens wants: one vector for its whole prompt, and where the prompt's second text begins.

Imports no torch and does not know how the vector is made. Invariant: a request with a `Pooling` samples nothing.
"""

from __future__ import annotations

from enum import StrEnum

import msgspec


class Task(StrEnum):
    """What a model is served for: text, a vector for each prompt, or scores of classes for each prompt."""

    GENERATE = "generate"
    EMBED = "embed"
    CLASSIFY = "classify"


class PoolingKind(StrEnum):
    """Which of a prompt's hidden rows become its vector: the mean of all, the last one, or the first one (BERT's [CLS])."""

    MEAN = "mean"
    LAST = "last"
    CLS = "cls"


class Pooling(msgspec.Struct, frozen=True, array_like=True):
    """The prompt's vector is wanted. Positions from `second_start` on belong to the second of two texts (None: there is one)."""

    second_start: int | None = None
