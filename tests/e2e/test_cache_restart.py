"""A server that comes back finds its KV cache in storage, whether it was stopped or killed, and the tokens are the same."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from serving import RunningServer, serving, wait_until

needs_native = pytest.mark.skipif(find_spec("sapwood.kernels.native._native") is None, reason="the native module is not built")
STORY = "Once upon a time there was a fox who wanted to know what the stars are made of. " * 4


def tiered(folder: Path) -> tuple[str, ...]:
    return ("--enable-hierarchical-cache", "--hicache-storage-backend", "file", "--hicache-storage-path", str(folder))


def told(server: RunningServer) -> tuple[str, dict[str, Any]]:
    answer = server.generate(STORY, max_new_tokens=12, ignore_eos=True)
    return answer["text"], answer["meta_info"]["cached_tokens_details"]


@pytest.mark.parametrize("policy", ["write_through", pytest.param("write_back", marks=pytest.mark.long)])
def test_the_first_request_after_a_restart_hits(policy: str, tmp_path: Path) -> None:
    options = (*tiered(tmp_path / "kv"), "--hicache-write-policy", policy)
    with serving(tmp_path, "null", *options) as server:
        first, details = told(server)
        assert details == {"device": 0, "host": 0, "storage": 0}
        assert server.stop() == 0
    with serving(tmp_path, "null", *options) as server:
        again, details = told(server)
        assert again == first
        assert details["storage"] >= len(STORY) - 16 and details["device"] == 0
        assert told(server)[1]["device"] >= len(STORY) - 16  # and from now on it is nearer


def test_damaged_files_are_not_served(tmp_path: Path) -> None:
    folder = tmp_path / "kv"
    with serving(tmp_path, "null", *tiered(folder)) as server:
        first, _ = told(server)
        assert server.stop() == 0
    for path in folder.glob("*.kv"):
        content = bytearray(path.read_bytes())
        for position in range(200, len(content), 173):  # every record has at least one wrong bit
            content[position] ^= 4
        path.write_bytes(content)
    with serving(tmp_path, "null", *tiered(folder)) as server:
        again, details = told(server)
        assert again == first and details["storage"] == 0
        assert "damaged and ignored" in server.log.read_text()


@pytest.mark.long
@pytest.mark.real_model
@needs_native
def test_a_real_model_killed_while_it_writes(tmp_path: Path) -> None:
    options = (*tiered(tmp_path / "kv"), "--max-total-tokens", "2048", "--max-running-requests", "4")
    with serving(tmp_path, "smollm2-135m-instruct", *options) as server:
        first, _ = told(server)
        assert "kernels native" in server.log.read_text()
        server.child("worker").kill()  # the server starts another one, which takes the folder over
        wait_until(lambda: server.client.get("/ready").status_code == 503, 30, "the death is noticed")
        wait_until(lambda: server.client.get("/ready").status_code == 200, 60, "another worker serves")
        second, details = told(server)
        assert second == first and details["storage"] > 0
        assert server.stop() == 0
    with serving(tmp_path, "smollm2-135m-instruct", *options) as server:
        third, details = told(server)
        assert third == first and details["storage"] >= 64
