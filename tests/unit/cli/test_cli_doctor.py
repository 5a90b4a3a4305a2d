"""`sapwood doctor` on machines in good and in bad health."""

from __future__ import annotations

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
    for what in ("python", "torch", "libraries", "cpu", "memory", "cache", "models", "port"):
        assert what in out
    assert "broken" not in out
    assert list((tmp_path / "cache").iterdir()) == [], "nothing may be left behind"


def test_a_cache_that_cannot_be_written_is_broken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("SAPWOOD_CACHE", str(tmp_path / "file" / "cache"))
    assert [finding.health for finding in doctor.check_cache()] == [doctor.Health.BROKEN]
    assert main(["doctor"]) == 1


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
