"""What a child process owes its parent: take its orders from standard input, leave signals to it, and never outlive it.

The parent writes one line of JSON and keeps the pipe open; end of file means that the parent is gone, however it went. Ctrl-C and
service managers signal the whole group, but only the parent knows what is still to be finished. Invariant:
a child whose parent died ends at once, without clean-up, even if it is busy or its parent was killed.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from typing import TypeVar

import msgspec

Spec = TypeVar("Spec")


def receive_orders(spec_type: type[Spec]) -> Spec:
    """Read this child's spec from standard input and tie its life to the parent's. Call it first, before heavy imports run."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    line = sys.stdin.buffer.readline()
    threading.Thread(target=_die_with_parent, name="parent-watch", daemon=True).start()
    return msgspec.json.decode(line, type=spec_type)


def _die_with_parent() -> None:
    while os.read(0, 4096):
        pass
    os._exit(1)
