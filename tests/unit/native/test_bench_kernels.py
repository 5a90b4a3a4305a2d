"""The kernels' bench: small products, ratios by hand, and mistakes."""

from __future__ import annotations

import json

import numpy as np
import pytest

from sapwood.bench.kernels import Product, read_bandwidth
from sapwood.bench.measure import spread
from sapwood.cli.main import main

pytest.importorskip("sapwood.kernels.native", reason="needs the compiled kernels")

SMALL = ["--threads", "1", "--repeats", "1", "--cold-mb", "1", "--json", "-"]


def test_every_combination_is_measured(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["bench", "kernels", "--formats", "q4_1", "q6_k", "f16", "--shapes", "96x64", "256x32", "--rows", "1", "33", *SMALL]
    assert main(words) == 0
    report = json.loads(capsys.readouterr().out)
    found = [(p["format"], p["k"], p["n"], p["rows"]) for p in report["products"]]
    shapes = [("q4_1", 96, 64), ("q4_1", 256, 32), ("q6_k", 256, 32), ("f16", 96, 64), ("f16", 256, 32)]
    assert found == [(*shape, rows) for shape in shapes for rows in (1, 33)], "q6_k's blocks do not fit 96"
    assert all(p["seconds"]["median"] > 0 for p in report["products"]) and report["read_gb_s"]["least"] > 0


def test_rates_by_hand() -> None:
    product = Product(format="q4_1", k=1000, n=2000, rows=3, bytes=10**6, seconds=spread([1e-3, 2e-3, 4e-3]))
    assert (product.gmacs, product.gigabytes) == (3.0, 0.5)
    assert read_bandwidth(np.ones(1 << 16, dtype=np.int64), 2) > 0


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--formats", "q4_9"], "no storage type"),
        (["--formats", "q2_k", "--shapes", "256x32"], "no kernels for q2_k"),
        (["--shapes", "96"], "such as 576x1536"),
        (["--rows", "0"], "--rows must be"),
    ],
)
def test_mistakes(words: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "kernels", *words, "--threads", "1", "--repeats", "1", "--cold-mb", "1"]) == 2
    assert message in capsys.readouterr().err
