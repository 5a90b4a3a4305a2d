"""What the surroundings can do to a server: no port, model, room or permission. Each time the message that a person needs."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import tiny_llama
from serving import free_port, serving, wait_until

from sapwood.cli.main import main
from sapwood.weights import catalog

NOWHERE = "/proc/nowhere"
"""A folder that even root cannot make."""


def test_a_port_that_is_taken(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        assert main(["serve", "--model-path", "null", "--port", str(port)]) == 2
    assert f"cannot listen on 127.0.0.1:{port}" in (said := capsys.readouterr().err) and "choose another --port" in said


def test_a_model_that_is_not_there(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["serve", "--model-path", "/no/such/model", "--port", "0"]) == 2
    said = capsys.readouterr().err
    assert "/no/such/model" in said and "Traceback" not in said


def test_no_place_for_sockets(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("tempfile.tempdir", NOWHERE)
    assert main(["serve", "--model-path", "null", "--port", "0"]) == 2
    assert "set TMPDIR" in capsys.readouterr().err


@pytest.mark.real_model
def test_a_model_file_that_was_cut_short(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    whole = Path(catalog.resolve("smollm2-135m-instruct"))
    cut = tmp_path / "cut.gguf"
    with whole.open("rb") as source, cut.open("wb") as target:
        shutil.copyfileobj(source, target)
        target.truncate(whole.stat().st_size // 2)
    assert main(["serve", "--model-path", str(cut), "--port", "0"]) == 2
    said = capsys.readouterr().err
    assert str(cut) in said and "past the end of the file. Download it again" in said and "Traceback" not in said


def test_a_full_disk_and_a_cache_folder_that_cannot_be_written_stop_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The step log goes to a full disk, crash reports to a folder that cannot be made; a second server runs beside it."""
    monkeypatch.setenv("SAPWOOD_CACHE", NOWHERE)
    with serving(tmp_path, "null", "--step-log", "/dev/full") as server, serving(tmp_path, "null") as other:
        answer = server.generate("what would you say?", max_new_tokens=40)
        assert other.generate("what would you say?", max_new_tokens=40)["text"] == answer["text"]
        wait_until(lambda: "the step log ends here: No space left" in server.log.read_text(), 10, "the step log's end")
        worker = server.child("worker")
        worker.kill()
        wait_until(lambda: server.client.get("/ready").status_code == 503, 10, "recovery")
        wait_until(lambda: server.client.get("/ready").status_code == 200, 60, "the new worker")
        assert server.generate("what would you say?", max_new_tokens=40)["text"] == answer["text"]
        assert other.stop() == 0
        assert server.generate("and alone?", max_new_tokens=3)["meta_info"]["completion_tokens"] == 3
        assert server.stop() == 0
    log = server.log.read_text()
    assert f"no crash report can be written to {NOWHERE}" in log and "choose another --crash-dump-folder" in log
    assert "Traceback" not in log


def test_a_clock_that_jumps_disturbs_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every look at the time of day is years off, in one direction or the other; timeouts, deadlines and rates do not care."""
    folder = tmp_path / "clock"
    folder.mkdir()
    (folder / "sitecustomize.py").write_text(
        "import itertools, sys, time\n"
        "sys.meta_path[:] = [f for f in sys.meta_path if type(f).__name__ != 'ScikitBuildInplaceFinder']\n"
        "real, jumps = time.time, itertools.cycle((1e8, -1e8, 0.0, 3600.0))\n"
        "if any('sapwood' in word for word in sys.orig_argv): time.time = lambda: real() + next(jumps)\n"
    )
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join((str(folder), str(Path(__file__).parents[2] / "src"))))
    log = tmp_path / "requests.jsonl"
    with serving(tmp_path, "null", "--request-log", str(log), "--enable-metrics") as server:
        body = {"text": "tick", "sampling_params": {"max_new_tokens": 60, "ignore_eos": True}, "timeout": 60.0, "stream": True}
        with server.client.stream("POST", "/generate", json=body) as reply:
            assert '"completion_tokens":60' in [line for line in reply.iter_lines() if line][-2]
        assert server.client.get("/health").status_code == 200
        assert "sapwood:e2e_request_latency_seconds_sum" in server.client.get("/metrics").text
        assert server.stop() == 0
        assert "Traceback" not in server.log.read_text()
    (line,) = map(json.loads, log.read_text().splitlines())
    assert 0.0 < line["first_token_s"] <= line["end_s"] < 60.0


def test_two_servers_want_the_same_cache_folder(tmp_path: Path) -> None:
    storage = ("--enable-hierarchical-cache", "--hicache-storage-backend", "file", "--hicache-storage-path", str(tmp_path / "kv"))
    with serving(tmp_path, "null", *storage) as server:
        second = serve("null", *storage)
        assert second.returncode != 0 and "Traceback" not in second.stderr
        assert "is used by another process; give each server a path of its own" in second.stderr
        assert server.generate("still here", max_new_tokens=3)["meta_info"]["completion_tokens"] == 3


@pytest.mark.long
def test_weights_that_were_cut_short(tmp_path: Path) -> None:
    folder = tiny_llama.write(tmp_path / "model")
    (folder / "model.safetensors").write_bytes((1 << 20).to_bytes(8, "little") + b'{"half": ')
    ended = serve(str(folder))
    assert ended.returncode != 0 and "Traceback" not in ended.stderr
    assert str(folder) in ended.stderr and "download it again" in ended.stderr


def serve(model: str, *options: str) -> subprocess.CompletedProcess[str]:
    """`sapwood serve` that is expected to end soon."""
    command = [sys.executable, "-m", "sapwood.cli.main", "serve", "--model-path", model, "--port", str(free_port()), *options]
    return subprocess.run(command, capture_output=True, text=True, timeout=100)
