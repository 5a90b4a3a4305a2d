"""Memory of containers: limits of both cgroup versions, the tightest one of nested groups, and reclaimable page cache."""

from __future__ import annotations

from pathlib import Path

import psutil

from sapwood.device import host_memory

GIB = 1 << 30


def write(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


def test_no_group_means_the_machine(tmp_path: Path) -> None:
    assert host_memory.total_bytes(tmp_path) == psutil.virtual_memory().total
    assert 0 < host_memory.available_bytes(tmp_path) <= psutil.virtual_memory().total


def test_the_tightest_of_nested_version_2_groups_counts(tmp_path: Path) -> None:
    group = "sys/fs/cgroup"
    root = write(
        tmp_path,
        {
            "proc/self/cgroup": "0::/pod/app\n",
            f"{group}/pod/app/memory.max": "max\n",
            f"{group}/pod/app/memory.current": "1\n",
            f"{group}/pod/memory.max": f"{GIB}\n",
            f"{group}/pod/memory.current": f"{GIB // 2}\n",
            f"{group}/pod/memory.stat": f"anon 5\ninactive_file {GIB // 8}\nactive_file 7\n",
        },
    )
    assert host_memory.total_bytes(root) == GIB
    assert host_memory.available_bytes(root) == GIB - GIB // 2 + GIB // 8


def test_a_container_sees_its_own_group_at_the_mount(tmp_path: Path) -> None:
    files = {"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/memory.max": f"{GIB}", "sys/fs/cgroup/memory.current": f"{2 * GIB}"}
    root = write(tmp_path, files)
    assert host_memory.total_bytes(root) == GIB
    assert host_memory.available_bytes(root) == 0


def test_version_1_groups(tmp_path: Path) -> None:
    group = "sys/fs/cgroup/memory/docker/abc"
    root = write(
        tmp_path,
        {
            "proc/self/cgroup": "12:cpu,cpuacct:/x\n5:memory:/docker/abc\n",
            f"{group}/memory.limit_in_bytes": f"{GIB}\n",
            f"{group}/memory.usage_in_bytes": f"{GIB // 4}\n",
            f"{group}/memory.stat": f"total_inactive_file {GIB // 16}\n",
            "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n",
        },
    )
    assert host_memory.total_bytes(root) == GIB
    assert host_memory.available_bytes(root) == GIB - GIB // 4 + GIB // 16
