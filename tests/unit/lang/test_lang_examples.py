"""The examples of the frontend language run, on the null model, as their first lines say."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

import pytest

from sapwood.lang.defaults import DEFAULTS

EXAMPLES = Path(__file__).parents[3] / "examples"
NAMES = [
    "agent", "batch_scoring", "few_shot", "json_extraction", "judge", "map_reduce", "multi_turn", "self_consistency",
    "shared_document", "streaming_terminal", "tree_of_thought",
]  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
def test_examples_run(name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "argv", [f"{name}.py", "null"])
    monkeypatch.setattr(DEFAULTS, "backend", None)
    runpy.run_path(str(EXAMPLES / f"{name}.py"), run_name="__main__")
    assert capsys.readouterr().out.strip()
