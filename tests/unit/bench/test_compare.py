"""benchmarks/compare.py: what it reads from other engines' programs, and whole runs against stand-ins for them."""

from __future__ import annotations

import dataclasses
import importlib
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from sapwood.errors import ConfigError, EngineFailed

BENCHMARKS = Path(__file__).parents[3] / "benchmarks"
OURS = (sys.executable, "-m", "sapwood.cli.main")

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

# Stand-ins for OpenVINO's packages: every open request gets a token in each step; both write to `log` what they were told.
FAKE_OPENVINO = "def Tensor(ids):\n    assert str(ids.dtype) == 'int64' and ids.shape[0] == 1\n    return ids[0].tolist()\n"
FAKE_GENAI = """
import enum, json, os
from types import SimpleNamespace

GenerationStatus = enum.Enum("GenerationStatus", "RUNNING FINISHED")
SchedulerConfig = GenerationConfig = SimpleNamespace
LIMIT = int(os.environ.get("FAKE_LIMIT", "1000000"))


def tell(**what):
    with open(os.environ["FAKE_LOG"], "a") as log:
        log.write(json.dumps(what) + "\\n")


class Handle:
    def __init__(self, config):
        self.left, self.unread = min(config.max_new_tokens, LIMIT), 0

    def can_read(self):
        return self.unread > 0

    def read(self):
        self.unread -= 1
        return {0: SimpleNamespace(generated_ids=[7])}

    def get_status(self):
        return GenerationStatus.RUNNING if self.left else GenerationStatus.FINISHED


class ContinuousBatchingPipeline:
    def __init__(self, model, scheduler, device, properties):
        self.open = []
        tell(model=model, scheduler=vars(scheduler), device=device, properties=properties)

    def add_request(self, number, ids, config):
        assert config.ignore_eos and not config.do_sample
        self.open.append(Handle(config))
        tell(ids=ids, num_new=config.max_new_tokens)
        return self.open[-1]

    def step(self):
        tell(open=len(self.open))
        for handle in self.open:
            handle.left, handle.unread = handle.left - 1, handle.unread + 1
        self.open = [handle for handle in self.open if handle.left]
"""


@pytest.fixture
def compare(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """The script, which finds its parts beside itself."""
    monkeypatch.syspath_prepend(BENCHMARKS)
    yield importlib.import_module("compare")
    for name in [name for name in sys.modules if name.partition(".")[0] in ("compare", "comparison")]:
        del sys.modules[name]


def part(name: str) -> ModuleType:
    return importlib.import_module(f"comparison.{name}")


def program(folder: Path, name: str, output: str) -> Path:
    """A stand-in that prints `output`."""
    path = folder / name
    path.write_text(f"#!/bin/sh\ncat <<'END'\n{output}\nEND\n")
    path.chmod(0o755)
    return path


def llama_programs(folder: Path) -> None:
    for name, output in (("llama-bench", LLAMA_BENCH), ("llama-batched-bench", BATCHED_BENCH), ("llama-server", "")):
        program(folder, name, output)


@pytest.fixture
def openvino(compare: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """OpenVINO's side, on this Python with the stand-ins; `told` of the test's folder is their log."""
    packages = tmp_path / "packages"
    packages.mkdir()
    (packages / "openvino.py").write_text(FAKE_OPENVINO)
    (packages / "openvino_genai.py").write_text(FAKE_GENAI)
    known = packages / "openvino_genai-9.1.dist-info"
    known.mkdir()
    (known / "METADATA").write_text("Metadata-Version: 2.1\nName: openvino-genai\nVersion: 9.1\n")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(packages), os.environ.get("PYTHONPATH", "")]))
    monkeypatch.setenv("FAKE_LOG", str(tmp_path / "told"))
    return part("openvino_side").OpenVino(Path(sys.executable), tmp_path / "tiny.gguf", 2)


def told(tmp_path: Path, what: str) -> list[Any]:
    lines = [json.loads(line) for line in (tmp_path / "told").read_text().splitlines()]
    return [line for line in lines if what in line]


def test_reads_llama_cpp(compare: ModuleType) -> None:
    assert part("llama_cpp_side").bench_rate(LLAMA_BENCH) == 500.0
    assert part("llama_cpp_side").batched_bench_rate(BATCHED_BENCH) == 128.0


@pytest.mark.parametrize("text", ["", "[]", "{}", "[{}]", "error: failed to load model", '[{"avg_ts": null}]'])
def test_other_output_is_an_error(compare: ModuleType, text: str) -> None:
    with pytest.raises(EngineFailed):
        part("llama_cpp_side").bench_rate(text)
    with pytest.raises(EngineFailed):
        part("llama_cpp_side").batched_bench_rate(text)
    with pytest.raises(EngineFailed, match="something else"):
        part("openvino_side").heard(text, 1)


def test_reads_our_report(compare: ModuleType) -> None:
    report = {
        "batch": 2,
        "input_tokens": 100,
        "prefill_s": {"worker loop": {"median": 0.5}},
        "decode_step_s": {"worker loop": {"median": 0.01}},
    }
    assert part("sapwood_side").rates(json.dumps(report)) == {"prefill": 400.0, "decode": 200.0}


def test_missing_programs_are_named_before_anything_is_measured(compare: ModuleType, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"no llama-bench in .*build/bin"):
        part("llama_cpp_side").LlamaCpp(tmp_path, tmp_path / "m.gguf", 2)
    with pytest.raises(ConfigError, match=r"no python in .*--openvino-python"):
        part("openvino_side").OpenVino(tmp_path / "python", tmp_path / "m.gguf", 2)


def test_a_program_that_fails_says_why(compare: ModuleType, tmp_path: Path) -> None:
    path = tmp_path / "broken"
    path.write_text("#!/bin/sh\necho no such model >&2\nexit 3\n")
    path.chmod(0o755)
    with pytest.raises(EngineFailed, match="ended with 3: no such model"):
        part("processes").output_of([str(path)])


def test_a_server_that_does_not_start_says_why(compare: ModuleType, tmp_path: Path) -> None:
    path, processes = program(tmp_path, "llama-server", "cannot bind"), part("processes")
    with (
        pytest.raises(EngineFailed, match="did not start: cannot bind"),
        processes.running_server([str(path)], processes.free_port(), "/health"),
    ):
        pass


def test_openvino_gets_the_requests_of_the_load(openvino: Any, tmp_path: Path) -> None:
    """The same ids as over HTTP, so many open at once; what ran before them shares nothing with them."""
    lines = part("lines")
    load = lines.Load("shared-prefix", lines.WorkloadOptions(num_requests=5, num_prefixes=1, prefix_tokens=40, input_tokens=3), 2)
    assert openvino.hold(load) > 0.0
    (first,) = told(tmp_path, "model")
    assert first["model"] == str(tmp_path / "tiny.gguf") and first["properties"] == {"INFERENCE_NUM_THREADS": 2}
    assert first["scheduler"]["enable_prefix_caching"] and first["scheduler"]["dynamic_split_fuse"]
    given = [(line["ids"], line["num_new"]) for line in told(tmp_path, "ids")]
    wanted = [(conversation.first.prompt, conversation.first.num_new) for conversation in load.conversations()]
    assert given[5:] == wanted
    assert [(len(ids), num_new) for ids, num_new in given[:5]] == [(len(ids), num_new) for ids, num_new in wanted]
    assert all(before[0] != ids[0] for (before, _), (ids, _) in zip(given, wanted, strict=False))
    assert len({tuple(ids[:40]) for ids, _ in given[:5]}) == 1, "the warm-up shares a prefix, too"
    assert max(line["open"] for line in told(tmp_path, "open")) == 2


def test_openvino_may_know_the_prefix(openvino: Any, tmp_path: Path) -> None:
    lines = part("lines")
    load = lines.Load("shared-prefix", lines.WorkloadOptions(num_requests=3, num_prefixes=1, prefix_tokens=40, input_tokens=3), 2)
    side = dataclasses.replace(openvino, prefix_cached=True)
    side.hold(load)
    given = [line["ids"] for line in told(tmp_path, "ids")]
    assert len(given) == 7 and given[3] == given[4] == load.conversations()[0].first.prompt
    assert "had answered its first request" in side.note() and "first request" not in openvino.note()


def test_openvino_rates(openvino: Any, tmp_path: Path) -> None:
    assert openvino.prefill() > 0.0 and openvino.decode() > 0.0 and openvino.decode_batch() > 0.0
    assert {len(line["ids"]) for line in told(tmp_path, "ids")} == {512, 16, 64}
    assert max(line["open"] for line in told(tmp_path, "open")) == 32
    assert openvino.note().startswith("OpenVINO GenAI 9.1 read tiny.gguf; ")


def test_openvino_must_give_all_tokens(openvino: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_LIMIT", "3")
    with pytest.raises(EngineFailed, match="gave 3 of 65 ids"):
        openvino.decode()


def test_openvino_summary(openvino: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Rates of decoding begin when every request has its first token."""
    monkeypatch.syspath_prepend(tmp_path / "packages")
    run = part("openvino_run")
    found = run.summary([[1.0, 2.0, 3.0], [2.0, 3.0, 4.0]])
    assert found == {"all_first_s": 2.0, "duration_s": 4.0, "output_tokens": 6, "tokens_since": 3}
    for name in ("openvino", "openvino_genai"):
        del sys.modules[name]


def test_ratios_say_how_many_times_better(compare: ModuleType, tmp_path: Path) -> None:
    lines = part("lines")
    more = lines.measure(lines.Line("rate", "tokens/s", True, "a", lambda: 6.0, lambda: 2.0), 3)
    less = lines.measure(lines.Line("time", "s", False, "b", lambda: 2.0, lambda: 8.0), 3)
    assert (more.ratio.median, less.ratio.median, less.ratio.count) == (3.0, 4.0, 3)
    folder, file = tmp_path / "bin", tmp_path / "model.gguf"
    words = ["--llama-bin", str(folder), "--model", str(file)]
    text = compare.page([lines.row(more), lines.row(less)], file, ["A note."], words)
    assert "| rate (tokens/s) | a | 6 (6 to 6) | 2 (2 to 2) | 3 x (3 to 3) | 3 |" in text and "A note." in text
    assert "compare.py --llama-bin bin --model model.gguf" in text and str(tmp_path) not in text


@pytest.fixture
def null_model(compare: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file in whose place Sapwood's side runs the null model."""
    model = tmp_path / "tiny.gguf"
    model.touch()
    monkeypatch.setattr(compare.catalog, "resolve", lambda name, bars: model)
    side = part("sapwood_side")
    monkeypatch.setattr(side, "command", lambda *words: [*OURS, *("null" if word == str(model) else word for word in words)])
    return model


def test_a_whole_run(compare: ModuleType, null_model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    llama_programs(tmp_path)
    words = ["--llama-bin", str(tmp_path), "--pairs", "1", "--http-pairs", "0", "--out", str(tmp_path)]
    assert compare.main(words) == 0, capsys.readouterr().err
    (page,) = tmp_path.glob("*-compare-tiny-auto.md")
    assert page.read_text().count("(tokens/s)") == 3


def test_a_run_with_openvino(
    compare: ModuleType, openvino: Any, null_model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--openvino-python", sys.executable, "--only", "batch 1", "--pairs", "1", "--out", str(tmp_path)]
    assert compare.main(words) == 0, capsys.readouterr().err
    (page,) = tmp_path.glob("*-compare-tiny-auto.md")
    assert page.read_text().count("(tokens/s)") == 1 and "OpenVINO GenAI 9.1 read tiny.gguf" in page.read_text()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "nothing to compare with"),
        (["--openvino-python", sys.executable, "--only", "no such line"], "no line is left"),
        (["--openvino-python", sys.executable, "--pairs", "-1"], "at least 0"),
    ],
)
def test_runs_that_make_no_sense(
    compare: ModuleType, null_model: Path, words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert compare.main(words) == 1 and said in capsys.readouterr().err
