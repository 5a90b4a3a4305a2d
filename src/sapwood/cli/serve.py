"""Serves a model over HTTP until it is told to stop (Ctrl-C, SIGTERM).

Turns options into a `Config`, makes sure that the model is on disk, and hands over to `server.launch`. Invariant: a mistake in
the options ends the command before any process is started.
"""

from __future__ import annotations

import argparse
import logging
import os

from sapwood.config.raw import Parser, add_options, gather
from sapwood.config.resolve import log_choices, probe_host, resolve
from sapwood.observability.logging import configure_logging
from sapwood.observability.progress import Bars
from sapwood.server.launch import serve
from sapwood.weights import catalog


def add_arguments(parser: Parser) -> None:
    """Every option of the table."""
    add_options(parser)


def run(args: argparse.Namespace) -> int:
    """Serve; returns the server's exit code."""
    config = resolve(gather(args, os.environ), probe_host())
    configure_logging(config.server.log_level)
    log_choices(config, logging.getLogger(__name__))
    if not config.model.is_null:
        with Bars() as bars:
            catalog.resolve(config.model.model_path, bars)
    return serve(config)
