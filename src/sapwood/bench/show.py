"""Reports as a table for people or as JSON for programs.

Owns the layout; knows no measurement. Invariant: with `json` standard output is one JSON document and nothing else.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import msgspec
from rich import box
from rich.console import Console
from rich.table import Table

from sapwood.bench.measure import Percentiles, Spread
from sapwood.errors import ConfigError

PIPED_WIDTH = 160
STANDARD_OUTPUT = "-"


def grid(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> Table:
    """A table: the first column left, the others right."""
    table = Table(box=box.SIMPLE_HEAD)
    for index, name in enumerate(columns):
        table.add_column(name, justify="right" if index else "left", no_wrap=True)
    for row in rows:
        table.add_row(*row)
    return table


def emit(report: msgspec.Struct, tables: Sequence[Table], json_path: str | None) -> None:
    """Print the tables, or the report as JSON where `json_path` is "-"; any other path gets the JSON besides."""
    text = msgspec.json.format(msgspec.json.encode(report), indent=2)
    if json_path == STANDARD_OUTPUT:
        print(text.decode())
        return
    if json_path:
        try:
            Path(json_path).write_bytes(text + b"\n")
        except OSError as error:
            raise ConfigError(f"cannot write {json_path} ({error.strerror}); give --json a file that can be written") from None
    console = Console(width=None if sys.stdout.isatty() else PIPED_WIDTH)
    with console.capture() as page:
        for table in tables:
            console.print(table)
    print(page.get(), end="")


def seconds(value: float) -> str:
    """A duration."""
    if value >= 1.0:
        return f"{value:.2f} s"
    return f"{value * 1e3:.2f} ms" if value >= 1e-3 else f"{value * 1e6:.1f} µs"


def number(value: float) -> str:
    """A rate or a ratio, to three digits or so."""
    return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"


def spread_cells(spread: Spread, show: str = "number") -> tuple[str, str]:
    """Median, and least to most."""
    say = seconds if show == "seconds" else number
    return say(spread.median), f"{say(spread.least)} to {say(spread.most)}"


def latency_row(name: str, found: Percentiles) -> tuple[str, ...]:
    """One kind of latency."""
    if not found.count:
        return (name, "-", "-", "-", "-")
    return (name, *(seconds(value) for value in (found.mean, found.p50, found.p90, found.p99)))
