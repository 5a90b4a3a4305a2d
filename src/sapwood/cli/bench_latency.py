"""Measures one batch in process: `sapwood bench latency [MODEL] --batch-size 32`.

Turns options into a `Shape` and shows its report. Invariant: the engine is loaded once, and all variants run on it in turn.
"""

from __future__ import annotations

import argparse

from sapwood.bench.batch import Shape
from sapwood.bench.latency import latency_tables, measure_latency
from sapwood.bench.show import emit
from sapwood.cli.bench import at_least_one
from sapwood.cli.generation import llm_options
from sapwood.config.options import LLM_GROUPS
from sapwood.config.raw import Parser, add_options
from sapwood.core.interruption import interrupting_nobody
from sapwood.llm import configure
from sapwood.observability.logging import configure_logging
from sapwood.observability.progress import Bars
from sapwood.weights import catalog


def add_arguments(parser: Parser) -> None:
    """The batch, and the options of the engine."""
    parser.add_argument("named_model", nargs="?", metavar="MODEL", help="as --model-path")
    group = parser.add_argument_group("batch", "What is measured.")
    group.add_argument("--batch-size", type=int, metavar="INT", default=1, help="requests at once [%(default)s]")
    group.add_argument("--input-tokens", type=int, metavar="INT", default=512, help="tokens of each prompt [%(default)s]")
    group.add_argument("--output-tokens", type=int, metavar="INT", default=64, help="decode steps [%(default)s]")
    group.add_argument(
        "--shared-tokens", type=int, metavar="INT", default=0, help="also measure with prompts whose first tokens share pages"
    )
    group.add_argument("--repeats", type=int, metavar="INT", default=5, help="of each variant, alternating [%(default)s]")
    add_options(parser, LLM_GROUPS)


def run(args: argparse.Namespace) -> int:
    """Measure, print the report."""
    at_least_one(args, "batch_size", "input_tokens", "output_tokens", "repeats")
    configure_logging("warning")
    config = configure(None, llm_options(args, args.named_model))
    shape = Shape(args.batch_size, args.input_tokens, args.output_tokens, args.shared_tokens)
    with interrupting_nobody(), Bars() as bars:  # as a server's processes do
        path = "null" if config.model.is_null else str(catalog.resolve(config.model.model_path, bars))
        report = measure_latency(config, path, shape, args.repeats, bars)
    emit(report, latency_tables(report), args.json)
    return 0
