"""Prints the version of Sapwood.

Owns nothing else. Invariant: one line on standard output, nothing heavy imported.
"""

from __future__ import annotations

import argparse

from sapwood import __version__
from sapwood.config.raw import Parser


def add_arguments(parser: Parser) -> None:
    """`version` takes none."""


def run(args: argparse.Namespace) -> int:
    """Print `sapwood X.Y.Z`."""
    print(f"sapwood {__version__}")
    return 0
