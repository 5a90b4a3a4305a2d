"""Lists the models of the catalog and which of them have been fetched: `sapwood models`.

Knows no addresses; the catalog does. Invariant: it fetches nothing.
"""

from __future__ import annotations

import argparse
import sys

from rich import box
from rich.console import Console
from rich.table import Table

from sapwood.config.raw import Parser
from sapwood.weights import catalog

PIPED_WIDTH = 160


def add_arguments(parser: Parser) -> None:
    """None so far."""


def run(args: argparse.Namespace) -> int:
    """Print the table."""
    table = Table(box=box.SIMPLE_HEAD)
    table.add_column("name", no_wrap=True)
    table.add_column("size", justify="right", no_wrap=True)
    table.add_column("fetched", no_wrap=True)
    table.add_column("licence", no_wrap=True)
    table.add_column("what it is")
    for listed in catalog.list_models():
        model = listed.model
        fetched = "yes" if listed.path else "no"
        table.add_row(model.name, f"{model.num_bytes / 1e6:.0f} MB", fetched, model.licence, model.description)
    console = Console(width=None if sys.stdout.isatty() else PIPED_WIDTH)
    with console.capture() as page:
        console.print(table)
    print(page.get(), end="")
    print(f"kept in {catalog.cache_folder()}; fetch one with `sapwood pull NAME`")
    return 0
