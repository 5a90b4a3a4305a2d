"""The frontend language: programs whose prompts share prefixes, fork, choose and constrain, written as plain Python.

Owns SGLang's public names for it (`import sapwood.lang as sgl`). Invariant: importing this module loads no torch; `Engine` is
resolved when it is first used.
"""

from __future__ import annotations

import importlib
from typing import Any

from sapwood.lang.api import (
    assistant,
    assistant_begin,
    assistant_end,
    function,
    gen,
    gen_int,
    gen_string,
    image,
    select,
    separate_reasoning,
    system,
    system_begin,
    system_end,
    user,
    user_begin,
    user_end,
    video,
)
from sapwood.lang.backends.anthropic import Anthropic
from sapwood.lang.backends.endpoint import RuntimeEndpoint
from sapwood.lang.backends.openai import OpenAI
from sapwood.lang.choices import (
    greedy_token_selection,
    token_length_normalized,
    unconditional_likelihood_normalized,
)
from sapwood.lang.defaults import flush_cache, get_server_info, set_default_backend
from sapwood.lang.program import Program
from sapwood.lang.state import ForkGroup, ProgramState

__all__ = [
    "Anthropic",
    "ForkGroup",
    "OpenAI",
    "Program",
    "ProgramState",
    "RuntimeEndpoint",
    "assistant",
    "assistant_begin",
    "assistant_end",
    "flush_cache",
    "function",
    "gen",
    "gen_int",
    "gen_string",
    "get_server_info",
    "greedy_token_selection",
    "image",
    "select",
    "separate_reasoning",
    "set_default_backend",
    "system",
    "system_begin",
    "system_end",
    "token_length_normalized",
    "unconditional_likelihood_normalized",
    "user",
    "user_begin",
    "user_end",
    "video",
]

_LAZY = {"Engine": "sapwood.library"}


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module 'sapwood.lang' has no attribute {name!r}")
    return getattr(importlib.import_module(_LAZY[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
