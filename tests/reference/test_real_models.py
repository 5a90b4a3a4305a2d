"""On the catalog's real models we choose what transformers chose; `scripts/make_reference_outputs.py` made the stored ids."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from engine_driver import EngineDriver

from sapwood.distributed.group import SoloGroup
from sapwood.engine.lifecycle import EngineOptions, create_engine
from sapwood.weights.catalog import resolve
from sapwood.weights.checkpoint import open_checkpoint

DATA = Path(__file__).parent.parent / "data" / "reference"
MODELS = sorted(path.stem for path in DATA.glob("*.json"))
LONG = "qwen2.5-coder-0.5b-instruct"
"""Three times as slow as the others on the torch engine, so it runs only where SAPWOOD_LONG_TESTS is set."""
NEAR_TIE = 1e-3
"""Where transformers' two largest logits are this close, either id is right."""

pytestmark = [pytest.mark.real_model, pytest.mark.timeout(600)]


class Case(NamedTuple):
    """A driven engine, and what transformers generated: prompt_ids, output_ids and gaps per prompt."""

    driver: EngineDriver
    outputs: list[dict[str, Any]]


@pytest.fixture(scope="module", params=[pytest.param(name, marks=[pytest.mark.long] if name == LONG else []) for name in MODELS])
def case(request: pytest.FixtureRequest) -> Iterator[Case]:
    outputs = json.loads((DATA / f"{request.param}.json").read_text())["cases"]
    options = EngineOptions(num_slots=20, max_len=768, num_pages=20 * 48, page_size=16, device="cpu")
    engine = create_engine(options, open_checkpoint(resolve(request.param)), SoloGroup())
    yield Case(EngineDriver(engine), outputs)
    engine.close()


def test_reference_outputs_are_complete() -> None:
    assert len(MODELS) == 3
    for model in MODELS:
        cases = json.loads((DATA / f"{model}.json").read_text())["cases"]
        assert [(len(case["output_ids"]), len(case["gaps"])) for case in cases] == [(64, 64)] * 20


def test_teacher_forced_choices_agree_except_at_near_ties(case: Case) -> None:
    for output in case.outputs:
        scores = case.driver.score(output["prompt_ids"] + output["output_ids"], first=len(output["prompt_ids"]))
        for score, token_id, gap in zip(scores, output["output_ids"], output["gaps"], strict=True):
            assert score.argmax == token_id or gap <= NEAR_TIE, output["prompt"]
            assert score.gap == pytest.approx(gap, abs=NEAR_TIE)


@pytest.mark.long
def test_free_running_output_agrees_up_to_the_first_near_tie(case: Case) -> None:
    generated = case.driver.generate([output["prompt_ids"] for output in case.outputs], 64)
    for output, ids in zip(case.outputs, generated, strict=True):
        gaps = output["gaps"]
        certain = next((index for index, gap in enumerate(gaps) if gap <= NEAR_TIE), len(gaps))
        assert ids[:certain] == output["output_ids"][:certain], output["prompt"]
