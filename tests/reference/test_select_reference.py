"""`select` finds the log-probabilities that transformers finds; `scripts/make_choice_outputs.py` made the stored ones."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import sapwood.lang as sgl
from sapwood import LLM

MODEL = "smollm2-135m-instruct"
CASES = json.loads((Path(__file__).parent.parent / "data" / "choices" / f"{MODEL}.json").read_text())["cases"]

pytestmark = [pytest.mark.real_model, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def llm() -> Iterator[LLM]:
    with LLM(MODEL, kernel_backend="reference", dtype="float32", context_length=512, max_running_requests=8) as llm:
        yield llm


@sgl.function
def choose(s: Any, text: str, choices: list[str], method: Any) -> None:
    s += text + sgl.select("choice", choices, choices_method=method)


@pytest.mark.parametrize("case", CASES, ids=[case["text"] for case in CASES])
def test_choices_have_the_probabilities_of_transformers(llm: LLM, case: dict[str, Any]) -> None:
    state = choose.run(case["text"], case["choices"], sgl.token_length_normalized, backend=llm)
    meta = state.get_meta_info("choice")
    assert [[token_id for _, token_id, _ in choice] for choice in meta["input_token_logprobs"]] == case["ids"]
    for choice, expected in zip(meta["input_token_logprobs"], case["logprobs"], strict=True):
        assert [logprob for logprob, _, _ in choice] == pytest.approx(expected, abs=2e-3)
    sums = [sum(values) for values in case["logprobs"]]
    weights = [math.exp(value - max(sums)) for value in sums]
    assert meta["choice_probabilities"] == pytest.approx([weight / sum(weights) for weight in weights], abs=2e-3)
    means = [sum(values) / len(values) for values in case["logprobs"]]
    assert state["choice"] == case["choices"][means.index(max(means))]
    greedy = choose.run(case["text"], case["choices"], sgl.greedy_token_selection, backend=llm)["choice"]
    first = [values[0] for values in case["logprobs"]]
    assert case["logprobs"][case["choices"].index(greedy)][0] == pytest.approx(max(first), abs=2e-3)
