"""`sapwood doctor` on machines in good and in bad health."""

from __future__ import annotations

import json
import socket
from pathlib import Path

import pytest

from sapwood.cli import doctor
from sapwood.cli.main import main
from sapwood.errors import ConfigError


def test_this_machine_is_healthy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("SAPWOOD_CACHE", str(tmp_path / "cache"))
    assert main(["doctor"]) == 0
    out = capsys.readouterr().out
    for what in ("python", "torch", "libraries", "cpu", "memory", "files", "cache", "sockets", "models", "crashes", "port"):
        assert what in out
    assert "broken" not in out
    assert list((tmp_path / "cache").iterdir()) == [], "nothing may be left behind"


def test_a_cache_that_cannot_be_written_is_broken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("SAPWOOD_CACHE", str(tmp_path / "file" / "cache"))
    assert [finding.health for finding in doctor.check_cache()] == [doctor.Health.BROKEN]
    assert main(["doctor"]) == 1


def test_the_latest_crash_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SAPWOOD_CACHE", str(tmp_path))
    (tmp_path / "crashes").mkdir()
    assert [finding.detail for finding in doctor.check_crashes()] == ["no reports"]
    report = {"time": "2026-01-02 03:04:05", "what_happened": ["the worker 0 process is gone: it died of SIGKILL", "2 requests"]}
    (tmp_path / "crashes" / "crash-1.json").write_text(json.dumps(report))
    (finding,) = doctor.check_crashes()
    assert finding.health is doctor.Health.NOTE and "crash-1.json" in finding.detail
    assert "2026-01-02 03:04:05: the worker 0 process is gone: it died of SIGKILL; 2 requests" in finding.detail
    (tmp_path / "crashes" / "crash-1.json").write_text("[")
    assert [finding.health for finding in doctor.check_crashes()] == [doctor.Health.NOTE]


def test_few_files_and_no_room_for_sockets_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("resource.getrlimit", lambda kind: (256, 4096))
    (files,) = doctor.check_limits()
    assert files.health is doctor.Health.NOTE and "ulimit -n" in files.detail
    monkeypatch.setattr("tempfile.tempdir", "/proc/nowhere")
    (sockets,) = doctor.check_sockets()
    assert sockets.health is doctor.Health.BROKEN and "TMPDIR" in sockets.detail


def test_a_missing_library_is_broken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "LIBRARIES", ("json", "no_such_library"))
    (finding,) = doctor.check_libraries()
    assert finding.health is doctor.Health.BROKEN and "no_such_library" in finding.detail


def test_a_port_in_use_is_noted() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        finding = doctor.check_port(taken.getsockname()[1])
    assert finding.health is doctor.Health.NOTE and "--port" in finding.detail


def test_a_port_that_is_no_number_is_a_mistake(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--port", "http"]) == 2
    assert "invalid int value" in capsys.readouterr().err
    assert issubclass(ConfigError, Exception)
