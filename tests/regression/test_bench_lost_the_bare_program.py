"""The engine got wrappers (constraints, weight updates), and the latency bench lost sight of the program below them: it left out
`loop_over_bare` and called the engine by a wrapper's name."""

from __future__ import annotations

import pytest

from sapwood.bench.batch import Shape
from sapwood.bench.latency import BARE, measure_latency
from sapwood.llm import configure
from sapwood.weights.catalog import resolve


def test_the_null_engine_is_called_by_its_name() -> None:
    report = measure_latency(configure("null", {}), "null", Shape(1, 8, 2), 1, lambda task, done, total: None)
    assert report.engine == "NullEngine"


@pytest.mark.real_model
def test_the_loop_is_compared_with_the_bare_program() -> None:
    pytest.importorskip("sapwood.kernels.native._native", reason="the native module is not built; see csrc/README.md")
    path = str(resolve("smollm2-135m-instruct"))
    report = measure_latency(
        configure(path, {"kernel_backend": "native"}), path, Shape(1, 8, 4), 1, lambda task, done, total: None
    )
    assert report.engine == "NativeEngine" and BARE in report.decode_step_s
    assert report.loop_over_bare is not None and report.engine_over_bare is not None
