"""Sapwood serves language models: `LLM` in Python, `sapwood serve` over HTTP.

Owns the public names. Invariant: importing this module loads no torch; a heavy name is resolved when it is first used.
"""

from __future__ import annotations

import importlib
from importlib import metadata
from typing import TYPE_CHECKING, Any

from sapwood.core.sampling import LogprobOptions, SamplingParams, TokenLogprobs
from sapwood.errors import (
    Aborted,
    ConfigError,
    EngineFailed,
    InvalidRequest,
    Overloaded,
    SapwoodError,
    Unauthorized,
    Unavailable,
    UnknownModel,
    WeightsError,
)

if TYPE_CHECKING:
    from sapwood.library import Engine
    from sapwood.llm import LLM
    from sapwood.offline import GenerationResult

__all__ = [
    "Aborted",
    "ConfigError",
    "Engine",
    "EngineFailed",
    "GenerationResult",
    "InvalidRequest",
    "LLM",
    "LogprobOptions",
    "Overloaded",
    "SamplingParams",
    "SapwoodError",
    "TokenLogprobs",
    "Unauthorized",
    "Unavailable",
    "UnknownModel",
    "WeightsError",
    "__version__",
]

__version__ = metadata.version("sapwood")

_LAZY = {"Engine": "sapwood.library", "LLM": "sapwood.llm", "GenerationResult": "sapwood.offline"}


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module 'sapwood' has no attribute {name!r}")
    return getattr(importlib.import_module(_LAZY[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
