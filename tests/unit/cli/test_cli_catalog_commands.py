"""`sapwood models`, `pull` and `tokenize`, without the network."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from pathlib import Path

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers

from sapwood.cli.main import main
from sapwood.weights import catalog


@pytest.fixture
def tokenizer_folder(tmp_path: Path) -> Path:
    """A folder with a tokenizer.json of five words and nothing else."""
    words = Tokenizer(models.WordLevel({"[UNK]": 0, "hello": 1, "world": 2, "sap": 3, "wood": 4}, unk_token="[UNK]"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    words.save(str(tmp_path / "tokenizer.json"))
    return tmp_path


def feed(monkeypatch: pytest.MonkeyPatch, data: bytes) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(data)))


def test_models_lists_the_catalog(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("SAPWOOD_CACHE", str(tmp_path))
    assert main(["models"]) == 0
    out = capsys.readouterr().out
    assert all(model.name in out for model in catalog.MODELS)
    assert str(tmp_path) in out


def test_pull_prints_where_each_model_lies(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(catalog, "pull", lambda name, progress: Path("somewhere") / name)
    assert main(["pull", "a", "b"]) == 0
    assert capsys.readouterr().out == "a: somewhere/a\nb: somewhere/b\n"


def test_tokenize_json(tokenizer_folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    feed(monkeypatch, json.dumps(["hello world", "", "wood sap"]).encode())
    assert main(["tokenize", str(tokenizer_folder), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == [[1, 2], [], [4, 3]]


def test_tokenize_text(tokenizer_folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    feed(monkeypatch, b"hello wood")
    assert main(["tokenize", str(tokenizer_folder / "tokenizer.json")]) == 0
    assert json.loads(capsys.readouterr().out) == [1, 4]


@pytest.mark.parametrize("data", [b"[1]", b"hello", b'"hello"', b""])
def test_tokenize_refuses_what_is_no_list_of_texts(
    data: bytes, tokenizer_folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    feed(monkeypatch, data)
    assert main(["tokenize", str(tokenizer_folder), "--json"]) == 2
    assert "a JSON list of texts" in capsys.readouterr().err


def test_tokenize_loads_no_torch(tokenizer_folder: Path) -> None:
    script = f"import sys; from sapwood.cli.main import main; main(['tokenize', {str(tokenizer_folder)!r}, '--json'])"
    done = subprocess.run(
        [sys.executable, "-c", script + "; assert 'torch' not in sys.modules"], input=b'["sap"]', capture_output=True, check=True
    )
    assert json.loads(done.stdout) == [[3]]
