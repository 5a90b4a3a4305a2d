"""The report of a crash or a hang, for a person: what happened in a few sentences, then the facts behind them, as JSON.

Owns the report's form and folder; holds no texts of requests. Invariant: a report never gets in the way of recovery (what cannot
be written is logged), and the folder keeps the latest `MAX_REPORTS`.
"""

from __future__ import annotations

import contextlib
import logging
import platform
import signal
import time
from pathlib import Path

import msgspec

from sapwood.messages.flight import PlanRecord, StepRecord

MAX_REPORTS = 50

logger = logging.getLogger(__name__)


class CrashReport(msgspec.Struct, frozen=True, kw_only=True):
    """One crash. `suspects` are the requests in unfinished steps; `steps` the latest ones, newest last."""

    what_happened: list[str]
    time: str
    process: str
    pid: int
    exit_status: int
    epoch: int
    suspects: list[dict[str, int]]
    plan: PlanRecord | None
    steps: list[str]
    stacks: list[str]
    threads: list[str]
    memory: list[str]
    platform: str


def describe_exit(code: int) -> str:
    """An exit status in words."""
    if code >= 0:
        return f"it ended with status {code}; its last words are in the server's log"
    name = signal.Signals(-code).name if -code in signal.valid_signals() else f"signal {-code}"
    hints = {
        "SIGKILL": "it was killed from outside: by somebody, or by the system because memory ran out (dmesg tells)",
        "SIGSEGV": "native code touched memory that is not its own",
        "SIGBUS": "native code touched memory that is not there (a file cut short, or a full /dev/shm)",
        "SIGABRT": "native code gave up (an assertion, or damaged memory)",
        "SIGILL": "native code used an instruction that this processor does not have",
        "SIGFPE": "native code divided by zero",
    }
    return f"it died of {name}: {hints.get(name, 'see the stacks below, and the log')}"


def describe_steps(steps: list[StepRecord]) -> list[str]:
    """A line for each step."""
    lines, last_end_s = [], 0.0
    for step in steps:
        began_s = max(step.launched_s, last_end_s)
        took = f"{(step.ended_s - began_s) * 1000:.1f} ms" if step.ended_s else "not finished"
        last_end_s = step.ended_s or last_end_s
        lines.append(f"step {step.step}: {step.num_rows} rows, {step.num_tokens} tokens, {step.num_starts} starts, {took}")
    return lines


def machine_facts() -> tuple[list[str], str]:
    """How much memory there is and is left, and what machine this is."""
    memory = []
    with contextlib.suppress(OSError):
        memory = Path("/proc/meminfo").read_text().splitlines()[:3]
    return memory, platform.platform()


def write_report(folder: Path, report: CrashReport) -> Path | None:
    """Keep the report; its path, or None when it cannot be written."""
    path = folder / f"crash-{time.strftime('%Y%m%d-%H%M%S')}-{report.pid}.json"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        path.write_bytes(msgspec.json.format(msgspec.json.encode(report), indent=1))
        for old in sorted(folder.glob("crash-*.json"))[:-MAX_REPORTS]:
            old.unlink()
    except OSError as error:
        logger.warning("no crash report can be written to %s (%s); choose another --crash-dump-folder", folder, error.strerror)
        return None
    return path
