"""Fetches models of the catalog into the cache: `sapwood pull NAME ...`. What is there already is not fetched again.

Knows no addresses; the catalog does. Invariant: when it returns 0, every named model is complete and checked.
"""

from __future__ import annotations

import argparse

from sapwood.config.raw import Parser
from sapwood.observability.progress import Bars
from sapwood.weights import catalog


def add_arguments(parser: Parser) -> None:
    """The names."""
    parser.add_argument("names", nargs="+", metavar="NAME", help="a name that `sapwood models` lists")


def run(args: argparse.Namespace) -> int:
    """Fetch, and print where each model lies."""
    for name in args.names:
        with Bars() as bars:
            path = catalog.pull(name, bars)
        print(f"{name}: {path}")
    return 0
