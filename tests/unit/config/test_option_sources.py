"""Command line, environment, file and keywords: what they accept, and which one wins."""

from __future__ import annotations

from pathlib import Path

import pytest

from sapwood.config.raw import Parser, RawOptions, add_options, from_environment, from_file, from_mapping, gather
from sapwood.errors import ConfigError


def parse(*words: str, environ: dict[str, str] | None = None) -> RawOptions:
    parser = Parser(prog="test")
    add_options(parser)
    return gather(parser.parse_args(words), environ or {})


def test_the_exercise_command_line() -> None:
    raw = parse(
        *["--model-path", "smollm2-135m-instruct", "--host", "127.0.0.1", "--port", "30000"],
        *["--context-length", "4096", "--max-running-requests", "1", "--enable-metrics"],
    )
    assert raw.values == {
        "model_path": "smollm2-135m-instruct",
        "host": "127.0.0.1",
        "port": 30000,
        "context_length": 4096,
        "max_running_requests": 1,
        "enable_metrics": True,
    }


def test_aliases_and_the_last_one_wins() -> None:
    assert parse("--model", "a", "--model-path", "b", "--tensor-parallel-size=2").values == {"model_path": "b", "tp_size": 2}


def test_nearest_source_wins(tmp_path: Path) -> None:
    file = tmp_path / "options.yaml"
    file.write_text("port: 1\nhost: file\npage-size: 32\nenable-metrics: true\n")
    raw = parse(
        "--config", str(file), "--port", "3", environ={"SAPWOOD_PORT": "2", "SAPWOOD_HOST": "variable", "SAPWOOD_CACHE": "x"}
    )
    assert raw.values == {"port": 3, "host": "variable", "page_size": 32, "enable_metrics": True}
    assert raw.sources == {"port": "command line", "host": "environment", "page_size": str(file), "enable_metrics": str(file)}


def test_a_switch_can_be_turned_off_again(tmp_path: Path) -> None:
    file = tmp_path / "options.yaml"
    file.write_text("disable-radix-cache: true\n")
    assert parse("--config", str(file), "--no-disable-radix-cache").get("disable_radix_cache") is False


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--chunked-prefil-size", "4"], "did you mean --chunked-prefill-size"),
        (["--page", "16"], "unknown option --page"),
        (["--page-size"], "expected one argument"),
        (["--page-size", "x"], "--page-size takes a whole number"),
        (["stray"], "unexpected argument 'stray'"),
        (["--restart", "sometimes"], "never, always"),
        (["--trust-remote-code"], "never runs code"),
    ],
)
def test_mistakes_on_the_command_line(words: list[str], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse(*words)
    assert message in caught.value.message


def test_mistakes_in_the_environment_name_the_variable() -> None:
    with pytest.raises(ConfigError, match="SAPWOOD_PORT: --port must be"):
        from_environment({"SAPWOOD_PORT": "-1"})


@pytest.mark.parametrize(
    ("text", "message"),
    [("- port", "one mapping"), ("port: [", "not valid YAML"), ("prot: 1", "did you mean port"), ("port: true", "whole number")],
)
def test_mistakes_in_a_file(tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "options.yaml"
    file.write_text(text)
    with pytest.raises(ConfigError, match=message):
        from_file(str(file))


def test_a_missing_file_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot read"):
        from_file(str(tmp_path / "none.yaml"))


def test_keywords_take_aliases_and_refuse_doubles() -> None:
    assert from_mapping({"tensor_parallel_size": 2, "dtype": None}, "LLM").values == {"tp_size": 2}
    with pytest.raises(ConfigError, match="set twice"):
        from_mapping({"tp_size": 2, "tensor_parallel_size": 2}, "LLM")
