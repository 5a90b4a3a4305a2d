"""Measures products of the native engine: `sapwood bench kernels --formats q4_1 q6_k --shapes 576x1536 --rows 1 32 512`.

Turns options into formats and shapes. Invariant: needs no model; without the compiled module it says how to get it.
"""

from __future__ import annotations

import argparse
import importlib
import re

from sapwood.bench.kernels import MEGABYTE, KernelsOptions, kernels_tables, measure_kernels
from sapwood.bench.machine import num_usable_cores
from sapwood.bench.show import emit
from sapwood.cli.bench import at_least_one
from sapwood.config.raw import Parser
from sapwood.errors import ConfigError

FORMATS = ("q4_1", "q5_0", "q6_k", "q8_0", "f16")
SHAPES = ("576x960", "1536x576", "896x9728", "4864x896")
ROWS = (1, 4, 32, 512)


def add_arguments(parser: Parser) -> None:
    """Formats, shapes and rows."""
    parser.add_argument("--formats", nargs="+", metavar="NAME", default=FORMATS, help=f"[{' '.join(FORMATS)}]")
    parser.add_argument("--shapes", nargs="+", metavar="KxN", default=SHAPES, help=f"inputs x outputs [{' '.join(SHAPES)}]")
    parser.add_argument("--rows", nargs="+", type=int, metavar="INT", default=ROWS, help="rows of the input [1 4 32 512]")
    parser.add_argument("--threads", type=int, metavar="INT", default=num_usable_cores(), help="[%(default)s]")
    parser.add_argument("--repeats", type=int, metavar="INT", default=5, help="of each product, alternating [%(default)s]")
    parser.add_argument("--cold-mb", type=int, metavar="INT", default=256, help="weights of one shape, in MB [%(default)s]")


def run(args: argparse.Namespace) -> int:
    """Measure, print the report."""
    at_least_one(args, "threads", "repeats", "cold_mb")
    if min(args.rows) < 1:
        raise ConfigError("--rows must be at least 1", param="rows")
    try:
        native = importlib.import_module("sapwood.kernels.native")._native
    except ImportError:
        raise ConfigError("the native kernels were not built; install a C++ compiler and run scripts/install again") from None
    options = KernelsOptions(threads=args.threads, repeats=args.repeats, cold_bytes=args.cold_mb * MEGABYTE)
    report = measure_kernels(native, args.formats, [_shape(text) for text in args.shapes], args.rows, options)
    emit(report, kernels_tables(report), args.json)
    return 0


def _shape(text: str) -> tuple[int, int]:
    found = re.fullmatch(r"([1-9]\d*)x([1-9]\d*)", text)
    if not found:
        raise ConfigError(f"--shapes takes shapes such as 576x1536, got {text!r}", param="shapes")
    return int(found[1]), int(found[2])
