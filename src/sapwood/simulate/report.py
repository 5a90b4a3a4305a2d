"""What a simulation found: latencies as histograms, totals, and their table.

Owns the arithmetic of percentiles and the shape of the report; does not run anything. Invariant: memory does not grow with the
number of observations, and a percentile is off by at most half a per cent.
"""

from __future__ import annotations

from collections import Counter
from math import exp, log

import msgspec
from rich import box
from rich.table import Table

_RESOLUTION = 0.01
_SMALLEST_S = 1e-6


class Latencies:
    """A histogram with buckets that each are one per cent wide."""

    def __init__(self) -> None:
        self._buckets: Counter[int] = Counter()
        self._count = 0
        self._sum = 0.0

    def add(self, seconds: float, count: int = 1) -> None:
        """`count` observations of the same value."""
        self._buckets[round(log(max(seconds, _SMALLEST_S)) / _RESOLUTION)] += count
        self._count += count
        self._sum += seconds * count

    def summary(self) -> Summary:
        """Mean and percentiles, in seconds; zeros when nothing was observed."""
        if not self._count:
            return Summary()
        wanted, found, seen = [0.5, 0.9, 0.99], list[float](), 0
        for bucket, count in sorted(self._buckets.items()):
            seen += count
            while len(found) < len(wanted) and seen >= wanted[len(found)] * self._count:
                found.append(exp(bucket * _RESOLUTION))
        return Summary(self._count, self._sum / self._count, *found)


class Summary(msgspec.Struct, frozen=True):
    """One kind of latency. Seconds."""

    count: int = 0
    mean: float = 0.0
    p50: float = 0.0
    p90: float = 0.0
    p99: float = 0.0


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome. Times in virtual seconds; `limited` is the share of the replicas' busy time in which each limit was what kept
    somebody waiting; `hit_rate` is the share of prompt tokens found in the cache at first admission."""

    num_requests: int
    num_failed: int
    num_replicas: int
    duration_s: float
    requests_per_s: float
    output_tokens_per_s: float
    total_tokens_per_s: float
    prompt_tokens: int
    output_tokens: int
    computed_tokens: int
    cached_tokens: int
    hit_rate: float
    num_steps: int
    num_retractions: int
    num_preemptions: int
    num_evicted_pages: int
    busy_share: float
    limited: dict[str, float]
    ttft: Summary
    itl: Summary
    e2e: Summary
    queue: Summary


def tables(report: Report) -> list[Table]:
    """The report for people."""
    latencies = Table(box=box.SIMPLE_HEAD)
    for name in ("latency", "mean", "p50", "p90", "p99"):
        latencies.add_column(name, justify="left" if name == "latency" else "right", no_wrap=True)
    for name, summary in (
        ("time to first token", report.ttft),
        ("inter-token", report.itl),
        ("end to end", report.e2e),
        ("queue", report.queue),
    ):
        latencies.add_row(name, *(_duration(value) for value in (summary.mean, summary.p50, summary.p90, summary.p99)))
    totals = Table(box=box.SIMPLE_HEAD, show_header=False)
    totals.add_column(no_wrap=True)
    totals.add_column(no_wrap=True)
    limited = ", ".join(f"{name} {share:.0%}" for name, share in report.limited.items() if share >= 0.005)
    for name, value in (
        ("requests", f"{report.num_requests} ({report.num_failed} failed) on {report.num_replicas} replica(s)"),
        ("duration", f"{report.duration_s:.1f} s, busy {report.busy_share:.0%}"),
        ("throughput", f"{report.requests_per_s:.2f} requests/s, {report.output_tokens_per_s:.1f} output tokens/s, "
                       f"{report.total_tokens_per_s:.1f} tokens/s"),
        ("prompt tokens", f"{report.prompt_tokens}, of which {report.cached_tokens} cached ({report.hit_rate:.1%})"),
        ("steps", f"{report.num_steps}, {report.num_retractions} retractions, {report.num_preemptions} preemptions, "
                  f"{report.num_evicted_pages} pages evicted"),
        ("limited by", limited or "nothing"),
    ):  # fmt: skip
        totals.add_row(name, value)
    return [totals, latencies]


def _duration(seconds: float) -> str:
    return f"{seconds:.2f} s" if seconds >= 1.0 else f"{seconds * 1000:.2f} ms"
