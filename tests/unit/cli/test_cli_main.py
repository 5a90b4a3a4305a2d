"""The entry point: finds commands, parses options, and turns errors into one line and an exit code."""

from __future__ import annotations

import importlib
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from sapwood import __version__
from sapwood.cli import main as cli
from sapwood.errors import ConfigError, EngineFailed, InvalidRequest, SapwoodError, WeightsError


def test_overview_names_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["--help"]) == 0
    out = capsys.readouterr().out
    assert all(name in out for name in cli.COMMANDS)
    assert cli.main([]) == 2


@pytest.mark.parametrize("words", [["version"], ["--version"]])
def test_version(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(words) == 0
    assert capsys.readouterr().out == f"sapwood {__version__}\n"


def test_every_command_has_its_file_and_its_two_functions() -> None:
    files = {path.stem for path in Path(cli.__file__).parent.glob("*.py")}
    assert set(cli.COMMANDS) <= files
    for module_name, summary in cli.COMMANDS.values():
        module = importlib.import_module(module_name)
        assert callable(module.add_arguments) and callable(module.run) and summary


@pytest.mark.parametrize("name", cli.COMMANDS)
def test_every_command_explains_itself(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        cli.main([name, "--help"])
    assert left.value.code == 0
    assert f"usage: sapwood {name}" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["srve"], "error: there is no command 'srve'; the commands are serve, run"),
        (["serve", "--page-sise", "16"], "error: command line: unknown option --page-sise; did you mean --page-size?"),
        (["serve", "--page-size", "3"], "error: command line: --page-size must be a power of two"),
        (["pull"], "error: command line: the following arguments are required: NAME"),
        (["pull", "no-such-model"], "error: the catalog has no model 'no-such-model'"),
    ],
)
def test_mistakes_are_one_line_and_exit_2(words: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(words) == 2
    captured = capsys.readouterr()
    assert captured.err.startswith(message) and captured.err.count("\n") == 1
    assert captured.out == ""


@pytest.mark.parametrize(
    ("error", "code"),
    [(ConfigError("x"), 2), (WeightsError("x"), 2), (InvalidRequest("x"), 2), (EngineFailed("x"), 1), (KeyboardInterrupt(), 130)],
)
def test_exit_codes(error: BaseException, code: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sapwood.cli.version.run", _raise(error))
    assert cli.main(["version"]) == code


def test_other_errors_are_not_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sapwood.cli.version.run", _raise(ZeroDivisionError()))
    with pytest.raises(ZeroDivisionError):
        cli.main(["version"])


def test_light_commands_stay_light() -> None:
    script = (
        "import sys; from sapwood.cli.main import main; main(['version']);"
        "heavy = {'torch', 'fastapi', 'transformers', 'tokenizers', 'zmq'} & sys.modules.keys(); assert not heavy, heavy"
    )
    subprocess.run([sys.executable, "-c", script], check=True, capture_output=True)


def test_a_reader_that_leaves_is_no_failure() -> None:
    script = f"{sys.executable} -m sapwood.cli.main models | true; exit ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True)
    assert done.returncode == 0 and done.stderr == ""


def _raise(error: BaseException) -> Callable[[object], int]:
    def run(args: object) -> int:
        raise error

    assert isinstance(error, SapwoodError | KeyboardInterrupt | ZeroDivisionError)
    return run
