#!/usr/bin/env python3
"""What a lone stream costs above its kernels: benchmarks/stream_overhead.py [--model NAME] [--pairs N]

In turn: decode steps of batch 1 as bare replays of the recorded program and through the worker's loop (`sapwood bench
latency`), the same stream over HTTP from a server on the same cores (`sapwood bench serve`, one request at a time), and how fast
memory is read (`sapwood bench kernels`). Prints milliseconds per token, what they are to the bare replays, and the weights read
per second as a share of reading.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from statistics import median
from typing import Any

from comparison.processes import free_port, output_of, running_server
from comparison.sapwood_side import command

from sapwood.bench.latency import BARE, LOOP
from sapwood.bench.machine import machine
from sapwood.errors import SapwoodError
from sapwood.weights.catalog import resolve
from sapwood.weights.checkpoint import open_checkpoint

INPUT_TOKENS, OUTPUT_TOKENS, STREAMS = 64, 128, 4
HTTP = "over HTTP"


def told(*words: str) -> Any:
    """The JSON report of a bench command."""
    return json.loads(output_of(command("bench", *words, "--json", "-")))


def measure(model: str, url: str, threads: int) -> dict[str, float]:
    """Seconds per token of each kind, and bytes per second of reading."""
    sizes = ("--input-tokens", str(INPUT_TOKENS), "--output-tokens", str(OUTPUT_TOKENS))
    steps = told("latency", model, "--batch-size", "1", *sizes, "--repeats", "3", "--cpu-threads", str(threads))["decode_step_s"]
    load = ("--max-concurrency", "1", "--num-requests", str(STREAMS))
    stream = told("serve", "--url", url, *sizes, *load)["tpot"]["p50"]
    kernels = told(
        "kernels", "--formats", "q8_0", "--shapes", "576x960", "--rows", "1", "--repeats", "3", "--threads", str(threads)
    )
    return {
        BARE: steps[BARE]["median"],
        LOOP: steps[LOOP]["median"],
        HTTP: stream,
        "reading": kernels["read_gb_s"]["median"] * 1e9,
    }


def bytes_of_step(model: str) -> int:
    """Of weights that a step reads: all but the embedding's rows, where the head is not the same matrix."""
    checkpoint = open_checkpoint(resolve(model))
    embedding = None if checkpoint.config.tie_embeddings else checkpoint.raw("model.embed_tokens.weight")
    return checkpoint.nbytes - (0 if embedding is None else embedding.data.nbytes)


def cell(values: Sequence[float], form: str) -> str:
    return f"{median(values):{form}} ({min(values):{form}} to {max(values):{form}})"


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2-135m-instruct", help="name or path [%(default)s]")
    parser.add_argument("--pairs", type=int, default=5, help="turns [%(default)s]")
    parser.add_argument("--threads", type=int, default=2, help="of each [%(default)s]")
    args = parser.parse_args(words)
    num_bytes, port = bytes_of_step(args.model), free_port()
    server = command("serve", "--model", args.model, "--port", str(port), "--cpu-threads", str(args.threads))
    with running_server(server, port, "/ready") as url:
        turns = [measure(args.model, url, args.threads) for _ in range(args.pairs)]
    facts = machine()
    print(f"{args.model}, {facts.cpu}, {facts.num_cores} cores, {facts.date}; medians (least to most) of {args.pairs} turns\n")
    print("| a token | ms | to bare replays | weights read, GB/s | of reading |\n|---|---|---|---|---|")
    for kind in (BARE, LOOP, HTTP):
        ms, ratios = [turn[kind] * 1e3 for turn in turns], [turn[kind] / turn[BARE] for turn in turns]
        rates = [num_bytes / turn[kind] for turn in turns]
        shares = [rate / turn["reading"] for rate, turn in zip(rates, turns, strict=True)]
        row = (kind, cell(ms, ".2f"), cell(ratios, ".2f"), f"{median(rates) / 1e9:.1f}", cell(shares, ".0%"))
        print(f"| {' | '.join(row)} |")
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except SapwoodError as error:
        sys.exit(str(error))
