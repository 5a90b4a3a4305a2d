"""What a measurement ran on, for its report.

Owns those facts; measures nothing. Invariant: names hardware and versions, never users, hosts or folders.
"""

from __future__ import annotations

import os
import platform
from datetime import UTC, datetime
from pathlib import Path

import msgspec

CPU_INFO = Path("/proc/cpuinfo")


class Machine(msgspec.Struct, frozen=True):
    """Where and when."""

    date: str
    cpu: str
    num_cores: int
    system: str
    python: str


def machine() -> Machine:
    """This machine, now (UTC)."""
    date = datetime.now(UTC).strftime("%Y-%m-%d %H:%M")
    return Machine(date, _cpu_name(), num_usable_cores(), f"{platform.system()} {platform.machine()}", platform.python_version())


def num_usable_cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _cpu_name() -> str:
    if CPU_INFO.is_file():
        for line in CPU_INFO.read_text(encoding="utf-8").splitlines():
            name, _, value = line.partition(":")
            if name.strip() == "model name":
                return value.strip()
    return platform.processor() or "unknown"
