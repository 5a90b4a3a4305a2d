"""How much memory this process may use on the host: the machine's, or less when a control group (container) says so.

Reads /proc and the cgroup file system, nothing else. Invariant: every limit on the way from the process's own group to the root
counts; page cache that the kernel would give back counts as free.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import psutil

_UNLIMITED = 1 << 60  # version 1 writes a huge number for "no limit"


def total_bytes(root: Path = Path("/")) -> int:
    """The machine's memory or the tightest group limit."""
    return min([int(psutil.virtual_memory().total), *(limit for limit, _ in _group_limits(root))])


def available_bytes(root: Path = Path("/")) -> int:
    """Memory that can be taken now without swapping and without passing any group's limit."""
    free = [max(0, limit - used) for limit, used in _group_limits(root)]
    return min([int(psutil.virtual_memory().available), *free])


def _group_limits(root: Path) -> Iterator[tuple[int, int]]:
    """(limit, bytes in use that the kernel cannot give back) of every group around this process that has a limit."""
    memberships = _read(root / "proc/self/cgroup").splitlines()
    for line in memberships:
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if not controllers:
            mount, files = root / "sys/fs/cgroup", ("memory.max", "memory.current", "inactive_file")
        elif "memory" in controllers.split(","):
            mount = root / "sys/fs/cgroup/memory"
            files = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
        else:
            continue
        for group in _ancestry(mount, path):
            limit = _read(group / files[0]).strip()
            if limit.isdigit() and int(limit) < _UNLIMITED:
                used = int(_read(group / files[1]).strip() or 0)
                yield int(limit), max(0, used - _statistic(group / "memory.stat", files[2]))


def _ancestry(mount: Path, path: str) -> Iterator[Path]:
    """The group and all groups above it. Inside a container the path may not exist; then its mount is the group itself."""
    group = mount / path.lstrip("/")
    while group != mount and mount in group.parents:
        yield group
        group = group.parent
    yield mount


def _statistic(file: Path, name: str) -> int:
    for line in _read(file).splitlines():
        key, _, value = line.partition(" ")
        if key == name:
            return int(value)
    return 0


def _read(file: Path) -> str:
    """The file's text, empty where it does not exist (no cgroups here, or another version of them)."""
    try:
        return file.read_text()
    except OSError:
        return ""
