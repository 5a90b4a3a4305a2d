"""What the surroundings can do to a server: no port, model, room or permission. Each time the message that a person needs."""

from __future__ import annotations

import shutil
import socket
from pathlib import Path

import pytest
from serving import serving, wait_until

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
