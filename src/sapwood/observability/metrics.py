"""The numbers that a server shows to Prometheus: one table, filled once per step or once per request.

Owns names, help texts and buckets; does not know where the numbers come from beyond the attribute names of a step's statistics.
Invariant: a registry of its own (nothing global); the scheduler's running totals are shown as they are, never added up twice.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric

PREFIX = "sapwood:"
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_STEP_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 0.75, 1.0, 2.5, 5.0)
_WAIT_BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0, 160.0, 640.0)


@dataclass(frozen=True, slots=True)
class Reading:
    """A number that is read from a step's statistics. `kind` is gauge or counter."""

    name: str
    kind: str
    help: str
    read: Callable[[Any], float]


def _used_pages(stats: Any) -> int:
    """Pages that hold something which eviction could not give back."""
    return int(stats.num_pages - stats.num_free_pages - stats.num_evictable_pages)


def _used_window_pages(stats: Any) -> int:
    return int(stats.num_window_pages - stats.num_free_window_pages - stats.num_evictable_window_pages)


def _ratio(part: float, whole: float) -> float:
    return part / whole if whole else 0.0


READINGS: tuple[Reading, ...] = (
    Reading("num_requests_running", "gauge", "Requests that hold a slot.", lambda s: s.num_running),
    Reading("num_requests_waiting", "gauge", "Requests that wait for a slot.", lambda s: s.num_waiting),
    Reading("kv_cache_usage_perc", "gauge", "Share of KV pages in use, 0 to 1.", lambda s: _ratio(_used_pages(s), s.num_pages)),
    Reading("token_usage", "gauge", "The same share, by SGLang's name.", lambda s: _ratio(_used_pages(s), s.num_pages)),
    Reading("num_used_tokens", "gauge", "KV locations in use.", lambda s: _used_pages(s) * s.page_size),
    Reading("num_cached_tokens", "gauge", "KV locations in the prefix cache.", lambda s: s.num_cached_pages * s.page_size),
    Reading("max_total_num_tokens", "gauge", "KV locations in all.", lambda s: s.num_pages * s.page_size),
    Reading("swa_used_tokens", "gauge", "The same of layers with a window.", lambda s: _used_window_pages(s) * s.page_size),
    Reading("swa_token_usage", "gauge", "Their share.", lambda s: _ratio(_used_window_pages(s), s.num_window_pages)),
    Reading("swa_evicted_tokens_total", "counter", "Theirs evicted.", lambda s: s.evicted_window_pages_total * s.page_size),
    Reading("new_token_ratio", "gauge", "Share of promised output that admission sets aside.", lambda s: s.new_token_ratio),
    Reading(
        "cache_hit_rate",
        "gauge",
        "Share of prompt tokens found in the prefix cache, over the worker's life.",
        lambda s: _ratio(s.cached_tokens_total, s.prompt_tokens_total),
    ),
    Reading("prefix_cache_queries_total", "counter", "Prompt tokens looked up.", lambda s: s.prompt_tokens_total),
    Reading("prefix_cache_hits_total", "counter", "Prompt tokens found in the prefix cache.", lambda s: s.cached_tokens_total),
    Reading("hicache_host_used_tokens", "gauge", "Tokens in the host's tier.", lambda s: s.num_host_cached_pages * s.page_size),
    Reading("hicache_host_total_tokens", "gauge", "Tokens that fit there.", lambda s: s.num_host_pages * s.page_size),
    Reading("hicache_backup_pages_total", "counter", "Pages saved to the host.", lambda s: s.saved_pages_total),
    Reading("hicache_unsaved_pages_total", "counter", "Pages that found no room there.", lambda s: s.unsaved_pages_total),
    Reading("hicache_load_back_pages_total", "counter", "Pages loaded from the host.", lambda s: s.loaded_pages_total),
    Reading("hicache_prefetched_pages_total", "counter", "Pages read from storage.", lambda s: s.fetched_pages_total),
    Reading("hicache_stored_pages_total", "counter", "Pages written to storage.", lambda s: s.stored_pages_total),
    Reading("cached_tokens_host_total", "counter", "Cached tokens from the host.", lambda s: s.cached_host_tokens_total),
    Reading("cached_tokens_storage_total", "counter", "Cached tokens from storage.", lambda s: s.cached_storage_tokens_total),
    Reading("prompt_tokens_total", "counter", "Prompt tokens of admitted requests.", lambda s: s.prompt_tokens_total),
    Reading("cached_tokens_total", "counter", "Prompt tokens that needed no computing.", lambda s: s.cached_tokens_total),
    Reading("computed_tokens_total", "counter", "Tokens that went through the model.", lambda s: s.computed_tokens_total),
    Reading("generation_tokens_total", "counter", "Completion tokens.", lambda s: s.generated_tokens_total),
    Reading("iterations_total", "counter", "Steps of the scheduler.", lambda s: s.steps_total),
    Reading("num_retracted_reqs_total", "counter", "Requests sent back to the queue.", lambda s: s.retractions_total),
    Reading("num_preempted_reqs_total", "counter", "Requests that gave way to a higher priority.", lambda s: s.preemptions_total),
    Reading("num_timed_out_reqs_total", "counter", "Requests whose time was over.", lambda s: s.timeouts_total),
    Reading("evicted_tokens_total", "counter", "KV locations evicted.", lambda s: s.evicted_pages_total * s.page_size),
    Reading("stale_messages_total", "counter", "Messages of an older epoch.", lambda s: s.stale_messages_total),
    Reading("law_violations_total", "counter", "Breaches of the law of pages.", lambda s: s.law_violations_total),
)


class Histogram:
    """Counts of observations by upper bound, cheap enough to be called for every request of a step."""

    def __init__(self, name: str, help: str, bounds: Sequence[float]) -> None:
        self.name = name
        self.help = help
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self._sum = 0.0

    def observe(self, value: float) -> None:
        """Add one observation."""
        self._counts[bisect_left(self._bounds, value)] += 1
        self._sum += value

    def family(self, labels: dict[str, str]) -> Metric:
        """The state as Prometheus wants it: cumulative counts."""
        total, buckets = 0, []
        for bound, count in zip((*map(str, self._bounds), "+Inf"), self._counts, strict=True):
            total += count
            buckets.append((bound, total))
        family = HistogramMetricFamily(PREFIX + self.name, self.help, labels=list(labels))
        family.add_metric(list(labels.values()), buckets, self._sum)
        return family


class Metrics:
    """Everything one server counts. Methods belong to the thread that also scrapes."""

    def __init__(self, model_name: str) -> None:
        self._labels = {"model_name": model_name}
        self._stats: Any = None
        self._ends: dict[str, int] = {"stop": 0, "length": 0}
        self._num_aborted = 0
        self._responses: dict[str, int] = {}
        self._first = Histogram("time_to_first_token_seconds", "From receipt to the first token.", _WAIT_BUCKETS)
        self._between = Histogram("inter_token_latency_seconds", "Between the updates of one request.", _STEP_BUCKETS)
        self._queued = Histogram("request_queue_time_seconds", "From arrival at the worker to admission.", _WAIT_BUCKETS)
        self._whole = Histogram("e2e_request_latency_seconds", "From receipt to the end.", _WAIT_BUCKETS)
        self._deaths: dict[str, int] = {}
        self._recovery = Histogram("recovery_seconds", "From a process's death until every request goes on.", _WAIT_BUCKETS)
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(self)

    def observe_step(self, stats: Any) -> None:
        """The newest statistics of the scheduler (read when scraped, not before)."""
        self._stats = stats

    def observe_tokens(self, interval_s: float, is_first: bool, queue_s: float | None = None) -> None:
        """One request got tokens, `interval_s` after it was received (the first ones) or after the last ones; `queue_s` is how
        long it waited to be admitted, observed with the first ones."""
        (self._first if is_first else self._between).observe(interval_s)
        if is_first and queue_s is not None:
            self._queued.observe(queue_s)

    def observe_finish(self, kind: str, latency_s: float, queue_s: float | None = None) -> None:
        """One request ended: stop, length, abort or error; `queue_s` is how long one without tokens waited to be admitted."""
        if queue_s is not None:
            self._queued.observe(queue_s)
        self._ends[kind] = self._ends.get(kind, 0) + 1
        self._whole.observe(latency_s)

    def observe_response(self, status: int) -> None:
        """One HTTP response was begun."""
        self._responses[str(status)] = self._responses.get(str(status), 0) + 1

    def observe_death(self, process: str) -> None:
        """A process died and is started again."""
        self._deaths[process] = self._deaths.get(process, 0) + 1

    def observe_recovery(self, duration_s: float) -> None:
        """Everything is back."""
        self._recovery.observe(duration_s)

    def render(self) -> bytes:
        """All metrics as Prometheus text."""
        return generate_latest(self._registry)

    def collect(self) -> Iterator[Metric]:
        """What prometheus-client calls when it scrapes."""
        if self._stats is not None:
            for reading in READINGS:
                yield self._single(reading.kind, reading.name, reading.help, reading.read(self._stats))
        for histogram in (self._first, self._between, self._queued, self._whole, self._recovery):
            yield histogram.family(self._labels)
        yield self._by_label("request_success_total", "Requests that ended, by reason.", "finished_reason", self._ends)
        yield self._single("counter", "num_aborted_requests_total", "Requests that were aborted.", self._ends.get("abort", 0))
        yield self._by_label("process_deaths_total", "Processes that died and were started again.", "process", self._deaths)
        yield self._by_label("http_responses_total", "HTTP responses, by status.", "status", self._responses)

    def _single(self, kind: str, name: str, help: str, value: float) -> Metric:
        make = GaugeMetricFamily if kind == "gauge" else CounterMetricFamily
        family = make(PREFIX + name, help, labels=list(self._labels))
        family.add_metric(list(self._labels.values()), value)
        return family

    def _by_label(self, name: str, help: str, label: str, counts: dict[str, int]) -> Metric:
        family = CounterMetricFamily(PREFIX + name, help, labels=[*self._labels, label])
        for value, count in sorted(counts.items()):
            family.add_metric([*self._labels.values(), value], count)
        return family


class NullMetrics:
    """The twin that counts nothing, for servers that show no metrics."""

    def observe_step(self, stats: Any) -> None:
        """Nothing."""

    def observe_tokens(self, interval_s: float, is_first: bool, queue_s: float | None = None) -> None:
        """Nothing."""

    def observe_finish(self, kind: str, latency_s: float, queue_s: float | None = None) -> None:
        """Nothing."""

    def observe_response(self, status: int) -> None:
        """Nothing."""

    def observe_death(self, process: str) -> None:
        """Nothing."""

    def observe_recovery(self, duration_s: float) -> None:
        """Nothing."""

    def render(self) -> bytes:
        """No metrics."""
        return b""
