"""Every example runs, on the null model, as its first lines say."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import source_tree

EXAMPLES = source_tree.REPO / "examples"
OFFLINE = ("offline_batch.py", "streaming.py")
ONLINE = ("openai_chat.py",)
AGENTS = ("weather_agent.py",)
"""Run by tests/e2e/test_weather_agent.py, on a real model that calls tools."""
PROGRAMS = (
    "agent.py", "batch_scoring.py", "few_shot.py", "json_extraction.py", "judge.py", "map_reduce.py", "multi_turn.py",
    "self_consistency.py", "shared_document.py", "speculative_calls.py", "streaming_terminal.py", "tree_of_thought.py",
)  # fmt: skip
"""Run by tests/unit/lang and tests/e2e/test_lang_remote.py, in this process, which takes less time."""


def run_example(name: str, argument: str) -> str:
    environment = {**os.environ, "SAPWOOD_RANDOM_SEED": "1"}
    command = [sys.executable, str(EXAMPLES / name), argument]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=100)
    assert done.returncode == 0, done.stderr
    return done.stdout


@contextmanager
def null_server() -> Iterator[str]:
    """The address of a server of the null model."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, "-m", "sapwood.cli.main", "serve", "--model", "null", "--port", str(port)]
    server = subprocess.Popen(command, stdin=subprocess.DEVNULL)
    try:
        wait_until_ready(f"http://127.0.0.1:{port}/ready", server)
        yield f"http://127.0.0.1:{port}/v1"
    finally:
        server.terminate()
        assert server.wait(30) == 0


def wait_until_ready(url: str, server: subprocess.Popen[bytes]) -> None:
    for _ in range(600):
        assert server.poll() is None, "the server ended while starting"
        try:
            with urllib.request.urlopen(url, timeout=5):
                return
        except (urllib.error.URLError, ConnectionError):
            time.sleep(0.1)
    raise AssertionError("the server was not ready within a minute")


def test_every_example_is_run_here() -> None:
    assert {path.name for path in EXAMPLES.glob("*.py")} == {*OFFLINE, *ONLINE, *AGENTS, *PROGRAMS}


@pytest.mark.parametrize("name", OFFLINE)
def test_offline_examples(name: str) -> None:
    assert run_example(name, "null").strip()


@pytest.mark.parametrize("name", ONLINE)
def test_online_examples(name: str) -> None:
    with null_server() as base_url:
        assert "completion tokens" in run_example(name, base_url)
