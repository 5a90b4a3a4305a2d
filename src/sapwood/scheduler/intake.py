"""Turns a Submit into a Request, or into the reason why it can never run.

Owns the checks on request data that protect the scheduler (the server makes them first, with better manners); does not queue.
Invariant: an accepted request fits the context and the pool when it is alone, and its parameters are resolved.
"""

from __future__ import annotations

import msgspec

from sapwood.core.plan import EngineLimits
from sapwood.core.request import ID_BYTES, Request
from sapwood.core.sampling import SamplingParams, validate
from sapwood.errors import InvalidRequest
from sapwood.messages.types import Submit, unpack_ids
from sapwood.scheduler.memory import kv_len
from sapwood.scheduler.options import SchedulerOptions


def make_request(submit: Submit, arrival: int, limits: EngineLimits, options: SchedulerOptions) -> Request:
    """The request behind `submit`; raises InvalidRequest with what to change."""
    num_prompt = _check_ids(submit, limits.vocab_size)
    validate(submit.params, limits.vocab_size)
    params = submit.params
    if params.seed is None:
        params = msgspec.structs.replace(params, seed=submit.number)
    if submit.pooling is not None:
        params = msgspec.structs.replace(params, max_new_tokens=0, min_new_tokens=0)
    return Request(
        number=submit.number,
        group=submit.group,
        arrival=arrival,
        token_bytes=bytearray(submit.token_ids),
        num_prompt=num_prompt,
        max_len=_max_len(num_prompt, params, limits),
        params=params,
        logprobs=submit.logprobs,
        sample_index=submit.sample_index,
        priority=options.effective_priority(submit.priority),
        namespace=submit.namespace,
        pin=submit.pin,
        pin_s=submit.pin_s,
        routing_key=submit.routing_key,
        pooling=submit.pooling,
    )


def _check_ids(submit: Submit, vocab_size: int) -> int:
    """The number of prompt tokens, all ids being whole and in the vocabulary."""
    if len(submit.token_ids) % ID_BYTES:
        raise InvalidRequest("token ids must be whole 32-bit integers", param="input_ids")
    ids = unpack_ids(submit.token_ids)
    num_prompt = len(ids) - submit.num_emitted
    if submit.num_emitted < 0 or num_prompt < 1:
        raise InvalidRequest("the prompt is empty; send at least one token", param="input_ids")
    low, high = int(ids.min()), int(ids.max())
    if low < 0 or high >= vocab_size:
        bad = low if low < 0 else high
        raise InvalidRequest(f"token id {bad} is outside the vocabulary (0..{vocab_size - 1})", param="input_ids")
    return num_prompt


def _max_len(num_prompt: int, params: SamplingParams, limits: EngineLimits) -> int:
    """Prompt plus allowed completion; a completion length that was left open is clamped to what context and pool allow."""
    longest = min(limits.max_len, limits.longest_kv + 1)
    num_new = params.max_new_tokens
    if num_new is None:
        num_new = max(longest - num_prompt, 1)
    max_len = num_prompt + num_new
    if max_len <= limits.max_len and kv_len(num_prompt, max_len) <= limits.longest_kv:
        return max_len
    raise InvalidRequest(
        f"{num_prompt} prompt tokens and {num_new} new ones do not fit the {longest} tokens that one request may have here;"
        " shorten the prompt or lower max_new_tokens",
        param="max_new_tokens" if num_prompt < longest else "input_ids",
    )
