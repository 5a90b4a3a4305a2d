"""OpenAI's Node client against a real model: words, a call of a tool, responses and an error, whole and streamed."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from asking import CALLED, COLOURS, MODEL, TOOL, WEATHER
from serving import RunningServer

pytestmark = [pytest.mark.real_model, pytest.mark.timeout(300)]
SOURCES = Path(__file__).parent / "node_client"


@pytest.fixture(scope="module")
def folder() -> Path:
    """The client, installed once for all runs on this machine."""
    node, npm = shutil.which("node"), shutil.which("npm")
    if node is None or npm is None:
        pytest.skip("node and npm are not installed")
    cache = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "sapwood-tests" / "node_client"
    shutil.copytree(SOURCES, cache, dirs_exist_ok=True)
    if not (cache / "node_modules" / "openai").is_dir():
        done = subprocess.run([npm, "install", "--no-audit", "--no-fund"], cwd=cache, capture_output=True, text=True, timeout=200)
        if done.returncode != 0:
            pytest.skip(f"npm cannot install the openai package: {done.stderr.strip()[-300:]}")
    return cache


def test_the_node_client(coder_server: RunningServer, folder: Path) -> None:
    asked = json.dumps({"words": COLOURS, "weather": WEATHER, "tool": TOOL})
    done = subprocess.run(
        ["node", "ask.mjs", coder_server.url, MODEL, asked], cwd=folder, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    answers: dict[str, Any] = json.loads(done.stdout)
    whole, streamed = answers["words"]
    assert whole == streamed and whole["content"] and whole["calls"] == [] and whole["finish_reason"] in ("stop", "length")
    for answer in answers["call"]:
        assert answer == {"content": None, "calls": [list(CALLED)], "finish_reason": "tool_calls"}
    assert answers["responses"][0] and answers["responses"][0] == answers["responses"][1]
    assert answers["refused"] == "BadRequestError 400 temperature"
