"""The server that the tests of clients share: a real model that calls tools, started once for all of them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from serving import RunningServer, serving

CODER = "qwen2.5-coder-0.5b-instruct"


@pytest.fixture(scope="session")
def coder_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    with serving(Path(tmp_path_factory.mktemp("coder")), CODER, "--context-length", "2048") as running:
        yield running
