"""`select` finds the log-probabilities that transformers finds; `scripts/make_choice_outputs.py` made the stored ones."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import sapwood.lang as sgl
from sapwood import LLM, SamplingParams
from sapwood.lang.backends.local import LocalBackend

MODEL = "smollm2-135m-instruct"
CASES = json.loads((Path(__file__).parent.parent / "data" / "choices" / f"{MODEL}.json").read_text())["cases"]

GREEDY_8 = SamplingParams(temperature=0.0, max_new_tokens=8)

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


@sgl.function
def go_on(s: Any, text: str, count: int) -> None:
    s += text + sgl.gen("x", max_tokens=count, temperature=0)


def test_a_generation_may_finish_the_token_at_the_border(llm: LLM) -> None:
    """Without healing a space at the end of the text leaves the model no word to begin, for words begin with their space."""
    text = "The capital of France is"
    plain = go_on.run(text, 6, backend=llm)
    healed = go_on.run(text + " ", 6, backend=llm)
    assert healed.text() == plain.text() and healed["x"] == plain["x"][1:]
    assert healed.get_meta_info("x")["healed"] == healed["x"][: len(healed.get_meta_info("x")["healed"])]
    unhealed = go_on.run(text + " ", 6, backend=LocalBackend(llm, token_healing=False))
    assert unhealed.text() != plain.text()
    streamed = go_on.run(text + " ", 6, backend=llm, stream=True)
    assert "".join(streamed.text_iter("x")) == healed["x"]


def test_marks_and_generations_are_not_healed(llm: LLM) -> None:
    @sgl.function
    def program(s: Any) -> None:
        s += sgl.user("Name a tree.")
        s += sgl.assistant(sgl.gen("a", max_tokens=8, temperature=0) + sgl.gen("b", max_tokens=4, temperature=0))

    state = program.run(backend=llm)
    assert "healed" not in state.get_meta_info("a") and "healed" not in state.get_meta_info("b")
    assert state["a"] == llm.chat([{"role": "user", "content": "Name a tree."}], GREEDY_8)[0].text
