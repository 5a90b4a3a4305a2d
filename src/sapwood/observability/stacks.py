"""What the threads of a process are doing: on request from outside, and at its death.

Owns a file per process and the signal that fills it; knows no Python internals beyond faulthandler, which needs neither the
interpreter lock nor a healthy interpreter. Invariant: asking changes nothing in the asked process.
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
import signal
import sys
import time
import traceback
from pathlib import Path
from types import TracebackType

ASK_SIGNAL = signal.SIGUSR1
ANSWER_S = 0.5


def keep_stacks(path: str) -> None:
    """Write this process's stacks to the file at `path` when it crashes in native code, or is sent `ASK_SIGNAL`.

    Where the file cannot be made, they go to standard error.
    """
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND, 0o600)
    except OSError:
        descriptor = sys.stderr.fileno()
    faulthandler.enable(descriptor, all_threads=True)
    faulthandler.register(ASK_SIGNAL, descriptor, all_threads=True)

    def on_exception(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        note_error(path, error)
        sys.__excepthook__(kind, error, trace)

    sys.excepthook = on_exception


def note_error(path: str, error: BaseException) -> None:
    """Write what ends this process beside the stacks."""
    with contextlib.suppress(OSError), Path(path).open("a", encoding="utf-8", errors="replace") as file:
        file.writelines(traceback.format_exception(error))


def ask_stacks(pid: int, path: str) -> None:
    """Let a process that keeps stacks write them now; waits a moment for it. A process that is gone, or keeps none, is let be."""
    if not Path(path).exists():  # the signal would end it
        return
    with contextlib.suppress(OSError):
        size = Path(path).stat().st_size
        os.kill(pid, ASK_SIGNAL)
        deadline_s = time.monotonic() + ANSWER_S
        while time.monotonic() < deadline_s and Path(path).stat().st_size == size:
            time.sleep(0.02)


def read_stacks(path: str, max_bytes: int = 1 << 18) -> list[str]:
    """The lines that the process has written, the last ones if there are many."""
    try:
        text = Path(path).read_bytes()[-max_bytes:].decode(errors="replace")
    except OSError:
        return []
    return text.splitlines()


def threads_of(pid: int) -> list[str]:
    """The threads that the system knows of, native ones too: name, state, and what each waits for; none without /proc."""
    lines = []
    for task in sorted(Path(f"/proc/{pid}/task").glob("*")):
        with contextlib.suppress(OSError, IndexError):
            name, state = (task / "comm").read_text().strip(), (task / "stat").read_text().rpartition(")")[2].split()[0]
            lines.append(f"{task.name} {name} {state} {(task / 'wchan').read_text().strip()}")
    return lines
