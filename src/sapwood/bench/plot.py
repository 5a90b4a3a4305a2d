"""A report as a picture; needs the extra `plot`.

Owns the layout; measures nothing. matplotlib is used without pyplot, so no state of the process and no display is involved.
Invariant: what would keep a picture from being drawn is said before anything is measured.
"""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from sapwood.bench.measure import Percentiles
from sapwood.bench.serve import Observations, ServeReport
from sapwood.bench.show import number, seconds
from sapwood.errors import ConfigError

SUFFIXES = (".png", ".svg", ".pdf")
SIZE_INCHES = (11.0, 7.5)
NUM_INTERVALS = 60
STYLE = {"svg.fonttype": "none", "axes.grid": True, "grid.alpha": 0.3, "legend.loc": "lower right"}
"""Letters stay letters in SVG files, so that they can be searched."""


def check_plot(path: str) -> None:
    """Raise ConfigError unless a picture can be made of that kind."""
    if not path.lower().endswith(SUFFIXES):
        raise ConfigError(f"--plot must name a file that ends in {', '.join(SUFFIXES)}, got {path!r}", param="plot")
    if not Path(path).absolute().parent.is_dir():
        raise ConfigError(f"--plot: there is no folder {Path(path).parent}; make it first", param="plot")
    _matplotlib()


def plot_serve(report: ServeReport, seen: Observations, path: str) -> None:
    """Draw how latencies are distributed and how many tokens came in each interval; raises ConfigError for a file that cannot be
    written."""
    matplotlib = _matplotlib()
    with matplotlib.rc_context(STYLE):
        figure = matplotlib.figure.Figure(figsize=SIZE_INCHES, layout="constrained")
        figure.suptitle(f"{report.workload}: {report.num_requests} requests, {seconds(report.duration_s)}, {report.machine.cpu}")
        first, between, whole, tokens = figure.subplots(2, 2).flat
        _draw_distribution(first, "ttft", "time to first token", seen.ttft, report.ttft)
        _draw_distribution(between, "itl", "inter-token", seen.itl, report.itl)
        _draw_distribution(whole, "e2e", "end to end", seen.e2e, report.e2e)
        _draw_throughput(tokens, report, seen)
        try:
            figure.savefig(path)
        except OSError as error:
            raise ConfigError(f"cannot write {path} ({error.strerror}); give --plot a file that can be written") from None


def tokens_per_second(
    tokens: list[tuple[float, float]], duration_s: float
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """The rate in each of NUM_INTERVALS equal intervals [NUM_INTERVALS], and their borders in seconds [NUM_INTERVALS + 1]."""
    moments, weights = np.array(tokens, dtype=np.float64).reshape(-1, 2).T
    counts, borders = np.histogram(moments, NUM_INTERVALS, (0.0, duration_s), weights=weights)
    return counts * NUM_INTERVALS / duration_s, borders


def _draw_distribution(axes: Any, name: str, title: str, values: list[float], found: Percentiles) -> None:
    """The share of observations that took at most so long."""
    axes.set(title=title, xlabel="seconds", ylabel="share of all")
    if not values:
        return
    axes.ecdf(values, gid=name)
    for what, style in (("p50", "-"), ("p90", "--"), ("p99", ":")):
        value = getattr(found, what)
        axes.axvline(value, linestyle=style, color="0.4", linewidth=1, label=f"{what} {seconds(value)}")
    axes.set_xlim(left=0.0)
    axes.legend()


def _draw_throughput(axes: Any, report: ServeReport, seen: Observations) -> None:
    rates, borders = tokens_per_second(seen.tokens, report.duration_s)
    mean = report.output_tokens_per_s
    axes.set(title="output tokens per second", xlabel="seconds after the start")
    axes.stairs(rates, borders, gid="throughput")
    axes.axhline(mean, color="0.4", linewidth=1, label=f"mean {number(mean)}")
    axes.legend()


def _matplotlib() -> Any:
    try:
        importlib.import_module("matplotlib.figure")
        return importlib.import_module("matplotlib")
    except ImportError:
        raise ConfigError("--plot needs matplotlib; install it with: pip install 'sapwood[plot]'", param="plot") from None
