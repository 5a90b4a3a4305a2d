"""On a real model: the same tokens however the work is cut up.

On the reference backend but for near ties (BLAS sums depend on shapes); on the native one to the bit, log-probabilities too.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from serving import serving

from sapwood import LLM, SamplingParams
from sapwood.core.sampling import LogprobOptions
from sapwood.offline import GenerationResult

MODEL = "smollm2-135m-instruct"
NEAR_TIE = 1e-3
PROMPTS = [
    "The capital of France is",
    "Once upon a time, in a village by the sea, there lived a fisherman who " * 6 + "one day",
    "def fibonacci(n):\n    ",
    "List three colours:\n1.",
    "Once upon a time, in a village by the sea, there lived a fisherman who " * 6 + "never",
    "Water boils at",
]
GREEDY = SamplingParams(temperature=0.0, max_new_tokens=32)
SHORT_GREEDY = SamplingParams(temperature=0.0, max_new_tokens=12)
"""For the reference, which is slow."""
SAMPLED = SamplingParams(temperature=0.8, top_p=0.95, max_new_tokens=32, seed=7)
TOP_TWO = LogprobOptions(output=True, top_n=2)
VARIANTS: dict[str, dict[str, Any]] = {
    "no overlap": {"disable_overlap_schedule": True},
    "no cache": {"disable_radix_cache": True},
    "chunks of 16": {"chunked_prefill_size": 16},
    "chunks of 64": {"chunked_prefill_size": 64},
    "whole prompts": {"chunked_prefill_size": -1},
    "pages of 1": {"page_size": 1},
    "prefill first": {"schedule_mode": "prefill-first"},
    "one at a time": {"max_running_requests": 1},
}


SHORT = ("chunks of 16", "no cache")
"""What the slow reference engine shows in every run; the native one shows all."""
NATIVE_VARIANTS = [name for name in VARIANTS if name != "pages of 1"]  # its pages hold 16 tokens


def open_llm(backend: str, **options: Any) -> LLM:
    return LLM(MODEL, kernel_backend=backend, max_total_tokens=8192, **options)


@pytest.fixture(scope="module")
def expected() -> list[tuple[list[int], list[float]]]:
    """The reference's ids in its default configuration, and how far apart the two best ids were at each position."""
    with open_llm("reference") as llm:
        results = llm.generate(PROMPTS, SHORT_GREEDY, logprobs=TOP_TWO)
    gaps = [[entry.top_logprobs[0] - entry.top_logprobs[1] for entry in result.logprobs or []] for result in results]
    return [(result.token_ids, gap) for result, gap in zip(results, gaps, strict=True)]


@pytest.fixture(scope="module")
def native_results() -> list[GenerationResult]:
    """The native backend's ids and log-probabilities, each prompt by itself on one thread."""
    with open_llm("native", cpu_threads=1, disable_radix_cache=True, max_running_requests=1) as llm:
        return [llm.generate([prompt], params, logprobs=TOP_TWO)[0] for params in (GREEDY, SAMPLED) for prompt in PROMPTS]


def assert_same_but_for_near_ties(ids: list[int], expected_ids: list[int], gaps: list[float]) -> None:
    for position, (token, wanted, gap) in enumerate(zip(ids, expected_ids, gaps, strict=False)):
        if token != wanted:
            assert gap < NEAR_TIE, f"position {position}: {token} instead of {wanted}, which led by {gap}"
            return
    assert len(ids) == len(expected_ids)


@pytest.mark.real_model
@pytest.mark.parametrize("variant", [pytest.param(name, marks=[] if name in SHORT else pytest.mark.long) for name in VARIANTS])
def test_tokens_do_not_depend_on_how_work_is_cut_up(variant: str, expected: list[tuple[list[int], list[float]]]) -> None:
    with open_llm("reference", **VARIANTS[variant]) as llm:
        for _ in range(2):  # the second time with whatever the first one left in the cache
            for result, (ids, gaps) in zip(llm.generate(PROMPTS, SHORT_GREEDY), expected, strict=True):
                assert_same_but_for_near_ties(result.token_ids, ids, gaps)


@pytest.mark.real_model
@pytest.mark.parametrize("variant", NATIVE_VARIANTS)
def test_native_tokens_and_logprobs_are_the_same_to_the_bit(variant: str, native_results: list[GenerationResult]) -> None:
    with open_llm("native", **VARIANTS[variant]) as llm:
        for _ in range(2):
            results = llm.generate(PROMPTS * 2, [GREEDY] * len(PROMPTS) + [SAMPLED] * len(PROMPTS), logprobs=TOP_TWO)
            for result, alone in zip(results, native_results, strict=True):
                assert result.token_ids == alone.token_ids
                assert result.logprobs == alone.logprobs


@pytest.mark.long
@pytest.mark.real_model
def test_two_ranks_give_the_same_tokens(tmp_path: Path, expected: list[tuple[list[int], list[float]]]) -> None:
    with serving(tmp_path, MODEL, "--tp-size", "2", "--kernel-backend", "reference", "--max-total-tokens", "8192") as server:
        assert sum(name.startswith("worker") for name in server.children()) == 2
        body = {"text": PROMPTS, "sampling_params": {"temperature": 0, "max_new_tokens": SHORT_GREEDY.max_new_tokens}}
        for item, (ids, gaps) in zip(server.client.post("/generate", json=body).json(), expected, strict=True):
            assert_same_but_for_near_ties(item["output_ids"], ids, gaps)
