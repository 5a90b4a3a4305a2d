"""The harness's cases in short: what is not refused is of its language, on a real model and on the null one."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from sapwood import LLM, SamplingParams

BENCHMARKS = Path(__file__).parents[3] / "benchmarks"
sys.path.insert(0, str(BENCHMARKS))

from constraint_cases import ebnf_cases, regex_cases, schema_cases  # noqa: E402
from constraints import FREE, run  # noqa: E402


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_on_the_null_model(temperature: float) -> None:
    cases = [*schema_cases(60, 5), *regex_cases(30, 5), *ebnf_cases(12, 5)]
    with LLM("null", random_seed=1) as llm:
        tallies, _ = run(llm, cases, 400, temperature)
    for kind, least in (("json_schema", 10), ("regex", 20), ("ebnf", 6)):
        assert tallies[kind].wrong == []
        assert tallies[kind].counts["valid"] >= least
    assert tallies["regex"].counts["refused"] == 0 and tallies["ebnf"].counts["refused"] == 0


@pytest.mark.real_model
def test_on_a_real_model_beside_free_prompts() -> None:
    cases = [*schema_cases(10, 9), *regex_cases(4, 9), *ebnf_cases(4, 9)]
    with LLM("smollm2-135m-instruct", max_total_tokens=16384) as llm:
        free = SamplingParams(max_new_tokens=48, temperature=0.0)
        alone = [llm.generate(text, free)[0].token_ids for text in FREE]
        llm.flush_cache()
        tallies, beside = run(llm, cases, 100, 0.8)
    assert beside == alone
    assert all(tally.wrong == [] for tally in tallies.values())
    assert sum(tally.counts["valid"] for tally in tallies.values()) >= 6
