"""Log lines of all processes, in one shape, on standard error.

Owns the format and the level; modules ask `logging.getLogger(__name__)` as usual. Invariant: standard output carries only
results, so that it can be piped; every line says which process and which part of the house it comes from.
"""

from __future__ import annotations

import logging
import sys

LEVELS = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}


def configure_logging(level: str = "info") -> None:
    """Send this process's `sapwood` messages to standard error. May be called again: the last call counts.

    `level` is a key of LEVELS. Other libraries' loggers are left alone.
    """
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname).1s %(process)d %(area)-11s %(message)s", "%H:%M:%S"))
    handler.addFilter(_add_area)
    logger = logging.getLogger("sapwood")
    logger.handlers = [handler]
    logger.setLevel(LEVELS[level])
    logger.propagate = False


def _add_area(record: logging.LogRecord) -> bool:
    """Lets the formatter name the package of the logger: sapwood.server.frontend is `server`."""
    record.area = record.name.split(".")[1] if "." in record.name else record.name
    return True
