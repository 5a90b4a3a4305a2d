"""benchmarks/compare.py: what it reads from llama.cpp's programs, and a whole run against stand-ins for them."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType

import pytest

from sapwood.errors import ConfigError, EngineFailed

SCRIPT = Path(__file__).parents[3] / "benchmarks" / "compare.py"

# As the programs print them, shortened.
LLAMA_BENCH = """[
  {
    "build_commit": "unknown", "model_type": "llama ?B Q4_1", "n_threads": 2, "n_prompt": 512, "n_gen": 0,
    "avg_ns": 1024000000, "stddev_ns": 0, "avg_ts": 500.0, "stddev_ts": 0.0,
    "samples_ns": [ 1024000000 ], "samples_ts": [ 500.0 ]
  }
]
"""
BATCHED_BENCH = """
main: n_kv_max = 3072, n_batch = 2048, n_ubatch = 512
{"n_kv_max": 3072, "pp": 64, "tg": 32, "pl": 32, "n_kv": 3072, "t_pp": 2.0, "speed_pp": 1024.0, "t_tg": 8.0, "speed_tg": 128.0}
"""


@pytest.fixture(scope="module")
def compare() -> ModuleType:
    spec = importlib.util.spec_from_file_location("compare", SCRIPT)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["compare"] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


def program(folder: Path, name: str, output: str) -> None:
    """A stand-in that prints `output`."""
    path = folder / name
    path.write_text(f"#!/bin/sh\ncat <<'END'\n{output}\nEND\n")
    path.chmod(0o755)


def test_reads_llama_cpp(compare: ModuleType) -> None:
    assert compare.llama_bench_rate(LLAMA_BENCH) == 500.0
    assert compare.batched_bench_rate(BATCHED_BENCH) == 128.0


@pytest.mark.parametrize("text", ["", "[]", "{}", "[{}]", "error: failed to load model", '[{"avg_ts": null}]'])
def test_other_output_is_an_error(compare: ModuleType, text: str) -> None:
    with pytest.raises(EngineFailed):
        compare.llama_bench_rate(text)
    with pytest.raises(EngineFailed):
        compare.batched_bench_rate(text)


def test_reads_our_report(compare: ModuleType) -> None:
    report = {
        "batch": 2,
        "input_tokens": 100,
        "prefill_s": {"worker loop": {"median": 0.5}},
        "decode_step_s": {"worker loop": {"median": 0.01}},
    }
    assert compare.our_rates(json.dumps(report)) == {"prefill": 400.0, "decode": 200.0}


def test_a_missing_program_is_named(compare: ModuleType, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"no llama-bench in .*build/bin"):
        compare.engine_lines(tmp_path, tmp_path / "m.gguf", 2, "auto")


def test_a_program_that_fails_says_why(compare: ModuleType, tmp_path: Path) -> None:
    path = tmp_path / "broken"
    path.write_text("#!/bin/sh\necho no such model >&2\nexit 3\n")
    path.chmod(0o755)
    with pytest.raises(EngineFailed, match="ended with 3: no such model"):
        compare.output_of([str(path)])


def test_a_server_that_does_not_start_says_why(compare: ModuleType, tmp_path: Path) -> None:
    program(tmp_path, "llama-server", "cannot bind")
    with (
        pytest.raises(EngineFailed, match="did not start: cannot bind"),
        compare.running_server([str(tmp_path / "llama-server")], compare.free_port(), "/health"),
    ):
        pass


def test_ratios_say_how_many_times_better(compare: ModuleType, tmp_path: Path) -> None:
    more = compare.measure(compare.Line("rate", "tokens/s", True, lambda: {"value": 6.0}, lambda: {"value": 2.0}), 3)
    less = compare.measure(compare.Line("time", "s", False, lambda: {"value": 2.0}, lambda: {"value": 8.0}), 3)
    assert (more.ratio.median, less.ratio.median, less.ratio.count) == (3.0, 4.0, 3)
    folder, file = tmp_path / "bin", tmp_path / "model.gguf"
    text = compare.page([compare.row(more), compare.row(less)], file, folder, ["--llama-bin", str(folder), "--model", str(file)])
    assert "| rate (tokens/s) | 6 (6 to 6) | 2 (2 to 2) | 3 x (3 to 3) | 3 |" in text
    assert "compare.py --llama-bin DIR --model model.gguf" in text and str(tmp_path) not in text


def test_a_whole_run(
    compare: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Sapwood's side on the null model, llama.cpp's by stand-ins."""
    program(tmp_path, "llama-bench", LLAMA_BENCH)
    program(tmp_path, "llama-batched-bench", BATCHED_BENCH)
    model = tmp_path / "tiny.gguf"
    model.touch()
    monkeypatch.setattr(compare.catalog, "resolve", lambda name, bars: model)
    monkeypatch.setattr(compare, "sapwood", lambda *words: [*OURS, *("null" if word == str(model) else word for word in words)])
    words = ["--llama-bin", str(tmp_path), "--pairs", "1", "--http-pairs", "0", "--out", str(tmp_path)]
    assert compare.main(words) == 0, capsys.readouterr().err
    (page,) = tmp_path.glob("*-compare-tiny-auto.md")
    assert page.read_text().count("(tokens/s)") == 3
    assert compare.main(["--llama-bin", str(tmp_path), "--pairs", "0"]) == 1 and "--pairs" in capsys.readouterr().err


OURS = (sys.executable, "-m", "sapwood.cli.main")
