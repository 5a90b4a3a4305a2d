"""How one request wants its tokens chosen, reported and ended.

Owns the parameters and their legal ranges; does not know how sampling is done. Invariant: a `SamplingParams` that passed
`validate` holds finite numbers in range and is never changed; defaults are SGLang's.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import msgspec

from sapwood.core.constraint import Constraint, validate_constraint
from sapwood.errors import InvalidRequest

MAX_STOP_STRINGS = 32
MAX_STOP_REGEX_BYTES = 256
MAX_SAMPLES = 128
MAX_TOP_LOGPROBS = 128
MAX_LOGIT_BIAS = 1024
GREEDY_BELOW_TEMPERATURE = 1e-6


class SamplingParams(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Sampling and stopping of one request.

    `max_new_tokens=None` means "up to the context length"; `top_k=-1` means the whole vocabulary; penalties count
    completion tokens only. `constraint` binds the completion to a language. `seed=None` draws one when the request is accepted,
    so that a replay samples the same ids.
    """

    max_new_tokens: int | None = 128
    min_new_tokens: int = 0
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = -1
    min_p: float = 0.0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: dict[int, float] = {}
    n: int = 1
    seed: int | None = None
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    stop_regex: tuple[str, ...] = ()
    no_stop_trim: bool = False
    ignore_eos: bool = False
    skip_special_tokens: bool = True
    spaces_between_special_tokens: bool = True
    constraint: Constraint | None = None

    @property
    def is_greedy(self) -> bool:
        """Whether the most probable token is always taken."""
        return self.temperature < GREEDY_BELOW_TEMPERATURE or self.top_k == 1

    @property
    def has_penalties(self) -> bool:
        """Whether the logits depend on the completion so far."""
        return self.frequency_penalty != 0.0 or self.presence_penalty != 0.0 or self.repetition_penalty != 1.0


class LogprobOptions(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Which log-probabilities (natural log, of the unmodified logits) a request wants back.

    `prompt_start` is the first prompt position to report, None for no prompt log-probabilities; position 0 has none by
    definition. `token_ids` asks for these ids at every reported position.
    """

    output: bool = False
    top_n: int = 0
    token_ids: tuple[int, ...] = ()
    prompt_start: int | None = None

    @property
    def wanted(self) -> bool:
        """Whether anything at all is asked for."""
        return self.output or self.prompt_start is not None


class TokenLogprobs(msgspec.Struct, frozen=True, array_like=True):
    """Log-probabilities at one position: of the chosen id, of the `top_n` best ids (descending), of the asked ids."""

    token_id: int
    logprob: float | None
    top_ids: list[int] = []
    top_logprobs: list[float] = []
    asked_logprobs: list[float] = []


_RANGES: dict[str, tuple[Callable[[Any], bool], str]] = {
    "temperature": (lambda v: v >= 0.0, "a finite number >= 0"),
    "top_p": (lambda v: 0.0 < v <= 1.0, "in (0, 1]"),
    "top_k": (lambda v: v == -1 or 1 <= v < 2**31, "-1 (all) or >= 1"),
    "min_p": (lambda v: 0.0 <= v <= 1.0, "in [0, 1]"),
    "frequency_penalty": (lambda v: -2.0 <= v <= 2.0, "in [-2, 2]"),
    "presence_penalty": (lambda v: -2.0 <= v <= 2.0, "in [-2, 2]"),
    "repetition_penalty": (lambda v: 0.0 < v <= 2.0, "in (0, 2]"),
    "max_new_tokens": (lambda v: v is None or 0 <= v < 2**31, "null or an integer from 0 to 2147483647"),
    "min_new_tokens": (lambda v: 0 <= v < 2**31, "an integer from 0 to 2147483647"),
    "n": (lambda v: 1 <= v <= MAX_SAMPLES, f"an integer from 1 to {MAX_SAMPLES}"),
    "seed": (lambda v: v is None or -(2**63) <= v < 2**63, "null or a signed 64-bit integer"),
}


def validate(params: SamplingParams, vocab_size: int) -> None:
    """Raise InvalidRequest naming the first field that is out of range, ids included (`0 <= id < vocab_size`)."""
    for name, (is_legal, rule) in _RANGES.items():
        value = getattr(params, name)
        if (isinstance(value, float) and not math.isfinite(value)) or not is_legal(value):
            raise InvalidRequest(f"{name} must be {rule}, got {value}", param=name)
    if params.max_new_tokens is not None and params.min_new_tokens > params.max_new_tokens:
        raise InvalidRequest("min_new_tokens must not exceed max_new_tokens", param="min_new_tokens")
    _validate_ids(params, vocab_size)
    if params.constraint is not None:
        validate_constraint(params.constraint, vocab_size)
    for name, patterns in (("stop", params.stop), ("stop_regex", params.stop_regex)):
        if len(patterns) > MAX_STOP_STRINGS:
            raise InvalidRequest(f"{name} takes at most {MAX_STOP_STRINGS} entries", param=name)
        if any(not pattern for pattern in patterns):
            raise InvalidRequest(f"{name} must not contain an empty string", param=name)
    if any(len(pattern.encode()) > MAX_STOP_REGEX_BYTES for pattern in params.stop_regex):
        raise InvalidRequest(f"a stop_regex may have at most {MAX_STOP_REGEX_BYTES} bytes", param="stop_regex")


def _validate_ids(params: SamplingParams, vocab_size: int) -> None:
    if len(params.logit_bias) > MAX_LOGIT_BIAS:
        raise InvalidRequest(f"logit_bias takes at most {MAX_LOGIT_BIAS} entries", param="logit_bias")
    for token_id, bias in params.logit_bias.items():
        if not math.isfinite(bias):
            raise InvalidRequest(f"logit_bias of id {token_id} must be finite, got {bias}", param="logit_bias")
    for name, ids in (("logit_bias", params.logit_bias), ("stop_token_ids", params.stop_token_ids)):
        for token_id in ids:
            if not 0 <= token_id < vocab_size:
                raise InvalidRequest(f"{name}: id {token_id} is outside the vocabulary (0..{vocab_size - 1})", param=name)
