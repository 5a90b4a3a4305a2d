"""Throughput without a server, on the null model, and the arithmetic that all benches share."""

from __future__ import annotations

import json

import pytest

from sapwood import LLM
from sapwood.bench.measure import alternate, percentiles, ratios, spread
from sapwood.bench.offline import measure_offline, offline_tables
from sapwood.bench.prompts import draw_prompts, into_vocabulary
from sapwood.bench.show import number, seconds
from sapwood.cli.main import main
from sapwood.core.plan import as_ids
from sapwood.errors import ConfigError
from sapwood.simulate.workload import WorkloadOptions

OPTIONS = WorkloadOptions(num_requests=6, input_tokens=20, output_tokens=5, spread=0.0, num_prefixes=1, prefix_tokens=64)


def test_lengths_and_hits() -> None:
    with LLM("null") as llm:
        report = measure_offline(llm, ["random", "shared-prefix", "random"], OPTIONS, 2)
    random, shared = report.cases
    assert (random.prompt_tokens, random.output_tokens) == (120, 30)
    assert (shared.prompt_tokens, shared.output_tokens) == (6 * 84, 30)
    assert random.hit_rate == 0.0 and shared.hit_rate > 0.3, "the cache was not flushed, or not used"
    assert random.duration_s.count == 2 and len(offline_tables(report)) == 1


def test_command(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["bench", "offline", "null", "--num-requests", "2", "--input-tokens", "8", "--output-tokens", "2", "--repeats", "1"]
    assert main([*words, "--json", "-"]) == 0
    assert json.loads(capsys.readouterr().out)["cases"][0]["output_tokens"] == 4
    assert main(words) == 0 and "output tokens/s" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["nothing"], "the kinds are kernels, latency"),
        (["offline", "null", "--repeats", "0"], "--repeats must be at least 1"),
        (["offline", "null", "--workload", "mixed"], "invalid choice"),
        (["latency", "null", "--json", "/no/such/folder/x", "--input-tokens", "4", "--output-tokens", "4"], "cannot write"),
    ],
)
def test_mistakes(words: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", *words]) == 2
    assert message in capsys.readouterr().err


def test_cases_take_turns_and_change_their_order() -> None:
    calls: list[str] = []

    def case(name: str) -> dict[str, float]:
        calls.append(name)
        return {"s": float(len(calls))}

    found = alternate({"a": lambda: case("a"), "b": lambda: case("b")}, 3)
    assert "".join(calls) == "abbaab"
    assert found == {"a": {"s": [1.0, 4.0, 5.0]}, "b": {"s": [2.0, 3.0, 6.0]}}


def test_arithmetic() -> None:
    assert spread([3.0, 1.0, 2.0]) == spread([1.0, 2.0, 3.0])
    assert ratios([2.0, 9.0, 4.0], [1.0, 3.0, 4.0]).median == 2.0
    found = percentiles([float(n) for n in range(101)])
    assert (found.mean, found.p50, found.p90, found.p99) == (50.0, 50.0, 90.0, 99.0)
    assert percentiles([]).count == 0
    assert [seconds(v) for v in (2.0, 0.0125, 3e-6)] == ["2.00 s", "12.50 ms", "3.0 µs"] and number(1234.5) == "1,234"


def test_ids_lie_in_the_vocabulary_and_equal_ones_stay_equal() -> None:
    ids = into_vocabulary(as_ids([7, 2**31 - 2, 7]), 1000)
    assert ids[0] == ids[2] and ids.min() >= 256 and ids.max() < 1000
    with pytest.raises(ConfigError, match="multi-turn"):
        draw_prompts("multi-turn", OPTIONS, 1000)
