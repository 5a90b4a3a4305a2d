"""Measures: `sapwood bench latency`, and the other kinds that `sapwood bench --help` lists.

Knows the kinds by name only; a kind's module is imported when it is asked for. Invariant: each kind takes `--json FILE`, where
`-` prints nothing but the JSON.
"""

from __future__ import annotations

import argparse
import importlib

from sapwood.config.raw import Parser
from sapwood.errors import ConfigError

KINDS: dict[str, tuple[str, str]] = {
    "kernels": ("sapwood.cli.bench_kernels", "the native engine's products, beside the memory's read bandwidth"),
    "latency": ("sapwood.cli.bench_latency", "prompt and decode of one batch, and what the worker's loop adds"),
    "offline": ("sapwood.cli.bench_offline", "throughput of LLM.generate"),
    "serve": ("sapwood.cli.bench_serve", "what a server does under load, over HTTP"),
}


def add_arguments(parser: Parser) -> None:
    """The kind; the rest is for its own parser."""
    kinds = "; ".join(f"{name}: {summary}" for name, (_, summary) in KINDS.items())
    parser.add_argument("kind", help=kinds)
    parser.add_argument("words", nargs=argparse.REMAINDER, metavar="OPTIONS", help="`sapwood bench KIND --help` lists them")


def run(args: argparse.Namespace) -> int:
    """Measure, print the report."""
    if args.kind not in KINDS:
        raise ConfigError(f"there is no bench {args.kind!r}; the kinds are {', '.join(KINDS)}")
    module_name, summary = KINDS[args.kind]
    module = importlib.import_module(module_name)
    parser = Parser(prog=f"sapwood bench {args.kind}", description=f"Measures {summary}.")
    module.add_arguments(parser)
    parser.add_argument("--json", metavar="FILE", help="write the report as JSON, too; `-`: print that and nothing else")
    code: int = module.run(parser.parse_args(args.words))
    return code


def at_least_one(args: argparse.Namespace, *names: str) -> None:
    """Raise ConfigError for counts below 1."""
    for name in names:
        value = getattr(args, name)
        if value is not None and value < 1:
            raise ConfigError(f"--{name.replace('_', '-')} must be at least 1, got {value}", param=name)
