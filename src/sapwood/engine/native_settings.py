"""A request's sampling parameters as the native sampler takes them, and its reports as the scheduler takes them.

Owns the translation only; what the numbers mean is said in `kernels.reference.sampling`. Invariant: what `core.sampling.validate`
accepts is accepted by the native sampler.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from sapwood.core.plan import SlotStart, as_ids
from sapwood.core.sampling import LogprobOptions, SamplingParams, TokenLogprobs
from sapwood.kernels.native import _native

HIGHEST_TEMPERATURE = 1e30  # all ids weigh the same long before
FLOAT32_LIMIT = float(np.finfo(np.float32).max) / 4  # a bias beyond it would overflow when added to a logit
NO_IDS = as_ids(())


def to_native_start(start: SlotStart, vocab_size: int, eos_token_ids: Iterable[int]) -> _native.SlotStart:
    """The settings of a slot. A seed that nobody drew counts as 0."""
    params = start.params
    return _native.SlotStart(
        start.slot,
        temperature=0.0 if params.is_greedy else min(params.temperature, HIGHEST_TEMPERATURE),
        top_k=min(params.top_k, vocab_size) if params.top_k > 0 else 0,
        top_p=params.top_p,
        min_p=params.min_p,
        seed=(params.seed or 0) % 2**64,
        sample_index=start.sample_index,
        steering=_steering(params, start.num_prompt, eos_token_ids),
        reporting=_reporting(start.logprobs, vocab_size),
    )


def _steering(params: SamplingParams, num_prompt: int, eos_token_ids: Iterable[int]) -> _native.Steering:
    """The ids that end the request must not come before `min_new_tokens`; with ignore_eos, eos is ordinary."""
    ending = {*params.stop_token_ids, *(() if params.ignore_eos else eos_token_ids)} if params.min_new_tokens else ()
    biases = np.clip(list(params.logit_bias.values()), -FLOAT32_LIMIT, FLOAT32_LIMIT).astype(np.float32)
    return _native.Steering(
        params.frequency_penalty,
        params.presence_penalty,
        params.repetition_penalty,
        num_prompt,
        params.min_new_tokens,
        as_ids(sorted(ending)) if ending else NO_IDS,
        as_ids(list(params.logit_bias)),
        biases,
    )


def _reporting(wanted: LogprobOptions, vocab_size: int) -> _native.Reporting:
    first = -1 if wanted.prompt_start is None else wanted.prompt_start
    return _native.Reporting(wanted.output, first, min(wanted.top_n, vocab_size), as_ids(wanted.token_ids))


def reports(wanted: LogprobOptions) -> bool:
    """Whether a slot with these options reports anything."""
    return wanted.output or wanted.prompt_start is not None


class Reports:
    """The log-probabilities of one step: `sampled` by index of the run, `prompts` as (first position, one entry each)."""

    def __init__(self, found: _native.StepResult) -> None:
        self.sampled: dict[int, TokenLogprobs] = {}
        self.prompts: dict[int, tuple[int, list[TokenLogprobs]]] = {}
        ids, values = found.report_ids.tolist(), found.report_values.tolist()
        first = 0
        for run, position, sampled, top_n, asked in found.reports.tolist():
            best, end = first + 1 + top_n, first + 1 + top_n + asked
            entry = TokenLogprobs(ids[first], values[first], ids[first + 1 : best], values[first + 1 : best], values[best:end])
            if sampled:
                self.sampled[run] = entry
            else:
                self.prompts.setdefault(run, (position, []))[1].append(entry)
            first = end
