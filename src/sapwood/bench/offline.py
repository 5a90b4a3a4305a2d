"""Throughput of `LLM.generate` on a list of prompts, without a server.

Owns the prompts and the clock. Invariant: every repeat starts with an empty prefix cache, and every completion has the length
that was asked for, whatever ids end a text.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import msgspec
from rich.table import Table

from sapwood.bench.machine import Machine, machine
from sapwood.bench.measure import Samples, Spread, alternate, spread
from sapwood.bench.prompts import draw_prompts
from sapwood.bench.show import grid, number, spread_cells
from sapwood.core.sampling import SamplingParams
from sapwood.llm import LLM
from sapwood.simulate.workload import WorkloadOptions


class OfflineCase(msgspec.Struct, frozen=True, kw_only=True):
    """One workload. `hit_rate` is the share of prompt tokens that came from the cache (median of the repeats)."""

    workload: str
    num_requests: int
    prompt_tokens: int
    output_tokens: int
    duration_s: Spread
    output_tokens_per_s: Spread
    total_tokens_per_s: Spread
    hit_rate: float


class OfflineReport(msgspec.Struct, frozen=True):
    """All workloads of one run."""

    machine: Machine
    model: str
    threads: int
    cases: list[OfflineCase]


def measure_offline(llm: LLM, names: Sequence[str], options: WorkloadOptions, repeats: int) -> OfflineReport:
    """Generate for each workload, `repeats` times in turn; raises ConfigError for an unknown workload."""
    found = alternate({name: _case(llm, name, options) for name in dict.fromkeys(names)}, repeats)
    cases = [_summarise(name, options.num_requests, samples) for name, samples in found.items()]
    return OfflineReport(machine(), llm.config.model.served_model_name, llm.config.engine.cpu_threads, cases)


def _case(llm: LLM, name: str, options: WorkloadOptions) -> Callable[[], dict[str, float]]:
    drawn = draw_prompts(name, options, llm.vocab_size)
    prompts = [ids.tolist() for ids, _ in drawn]
    params = [SamplingParams(temperature=0.0, max_new_tokens=count, ignore_eos=True) for _, count in drawn]

    def run() -> dict[str, float]:
        llm.flush_cache()
        began_s = time.perf_counter()
        results = llm.generate(prompts, params)
        duration_s = time.perf_counter() - began_s
        return {
            "duration_s": duration_s,
            "prompt_tokens": sum(result.num_prompt_tokens for result in results),
            "output_tokens": sum(len(result.token_ids) for result in results),
            "cached_tokens": sum(result.num_cached_tokens for result in results),
        }

    return run


def _summarise(name: str, num_requests: int, samples: Samples) -> OfflineCase:
    durations, prompt_tokens, output_tokens = samples["duration_s"], samples["prompt_tokens"][0], samples["output_tokens"][0]
    return OfflineCase(
        workload=name,
        num_requests=num_requests,
        prompt_tokens=int(prompt_tokens),
        output_tokens=int(output_tokens),
        duration_s=spread(durations),
        output_tokens_per_s=spread([output_tokens / s for s in durations]),
        total_tokens_per_s=spread([(prompt_tokens + output_tokens) / s for s in durations]),
        hit_rate=spread(samples["cached_tokens"]).median / prompt_tokens,
    )


def offline_tables(report: OfflineReport) -> list[Table]:
    """The report for people."""
    rows = [
        (
            case.workload,
            *spread_cells(case.duration_s, "seconds"),
            number(case.num_requests / case.duration_s.median),
            number(case.output_tokens_per_s.median),
            number(case.total_tokens_per_s.median),
            f"{case.hit_rate:.1%}",
        )
        for case in report.cases
    ]
    title = f"{report.model}, {report.threads} threads"
    return [grid((title, "median", "range", "requests/s", "output tokens/s", "tokens/s", "cached"), rows)]
