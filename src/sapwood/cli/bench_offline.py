"""Measures throughput without a server: `sapwood bench offline [MODEL] --workload random shared-prefix`.

Turns options into workloads and shows the report. Invariant: the model is loaded once, and the workloads run in turn.
"""

from __future__ import annotations

import argparse

from sapwood.bench.offline import measure_offline, offline_tables
from sapwood.bench.prompts import ID_WORKLOADS
from sapwood.bench.show import emit
from sapwood.cli.bench import at_least_one
from sapwood.cli.generation import llm_options
from sapwood.config.options import LLM_GROUPS
from sapwood.config.raw import Parser, add_options
from sapwood.llm import LLM
from sapwood.observability.logging import configure_logging
from sapwood.simulate.workload import WorkloadOptions


def add_arguments(parser: Parser) -> None:
    """The workload, and the options of the engine."""
    parser.add_argument("named_model", nargs="?", metavar="MODEL", help="as --model-path")
    group = parser.add_argument_group("workload", "What is generated.")
    group.add_argument("--workload", nargs="+", choices=ID_WORKLOADS, default=["random"], help="one or more, in turn [random]")
    for name, default, meaning in (
        ("num-requests", 64, "prompts"),
        ("input-tokens", 128, "tokens of a prompt of its own"),
        ("output-tokens", 64, "tokens of each completion"),
        ("num-prefixes", 1, "different shared prefixes"),
        ("prefix-tokens", 1000, "tokens of a shared prefix"),
        ("repeats", 3, "of each workload, alternating"),
    ):
        group.add_argument(f"--{name}", type=int, metavar="INT", default=default, help=f"{meaning} [%(default)s]")
    group.add_argument("--spread", type=float, metavar="FLOAT", default=0.0, help="share by which lengths vary [%(default)s]")
    group.add_argument("--seed", type=int, metavar="INT", default=0, help="of the prompts [%(default)s]")
    add_options(parser, LLM_GROUPS)


def run(args: argparse.Namespace) -> int:
    """Generate, print the report."""
    at_least_one(args, "num_requests", "input_tokens", "output_tokens", "num_prefixes", "repeats")
    configure_logging("warning")
    options = WorkloadOptions(
        num_requests=args.num_requests,
        input_tokens=args.input_tokens,
        output_tokens=args.output_tokens,
        spread=args.spread,
        num_prefixes=args.num_prefixes,
        prefix_tokens=args.prefix_tokens,
        seed=args.seed,
    )
    with LLM(progress=True, **llm_options(args, args.named_model)) as llm:
        report = measure_offline(llm, args.workload, options, args.repeats)
    emit(report, offline_tables(report), args.json)
    return 0
