"""Checks whether this machine is ready to serve, and says what to do where it is not.

One small function for each check, each answering with findings; knows nothing of how things are repaired. Invariant: it changes
nothing (one temporary file in the cache folder excepted), and returns 1 if and only if something is broken.
"""

from __future__ import annotations

import argparse
import importlib
import json
import platform
import resource
import shutil
import socket
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

import psutil
from rich.console import Console
from rich.text import Text

from sapwood import __version__
from sapwood.config.options import BY_NAME
from sapwood.config.raw import Parser
from sapwood.config.resolve import probe_host
from sapwood.weights import catalog

OLDEST_PYTHON = (3, 11)
SMALLEST_MEMORY_BYTES = 2 * 2**30
SMALLEST_TEMPORARY_BYTES = 64 * 2**20
SMALLEST_NUM_FILES = 4096
CPU_FEATURES = (
    *("avx2", "fma", "f16c", "avx_vnni", "avx512f", "avx512_vnni", "avx512_bf16", "amx_int8", "amx_bf16"),
    *("asimd", "asimddp", "bf16", "i8mm"),
)
LIBRARIES = ("fastapi", "gguf", "jinja2", "msgspec", "numpy", "re2", "safetensors", "tokenizers", "uvicorn", "uvloop", "zmq")


class Health(Enum):
    """How a check ended; NOTE is worth knowing and keeps nothing from working."""

    GOOD = "ok"
    NOTE = "note"
    BROKEN = "broken"


@dataclass(frozen=True, slots=True)
class Finding:
    """What one check found; `detail` says what to do unless all is well."""

    what: str
    health: Health
    detail: str


def add_arguments(parser: Parser) -> None:
    """Which port to look at."""
    port = BY_NAME["port"].default
    parser.add_argument("--port", type=int, metavar="INT", default=port, help="the port that should be free [%(default)s]")


def run(args: argparse.Namespace) -> int:
    """Print all findings; 1 if one of them is broken."""
    console = Console(soft_wrap=True)
    styles = {Health.GOOD: "green", Health.NOTE: "yellow", Health.BROKEN: "bold red"}
    findings = [finding for check in CHECKS for finding in check()] + [check_port(args.port)]
    for finding in findings:
        console.print(
            Text.assemble((f"{finding.health.value:<7}", styles[finding.health]), f"{finding.what:<10} {finding.detail}")
        )
    return 1 if any(finding.health is Health.BROKEN for finding in findings) else 0


def check_python() -> Iterator[Finding]:
    """The interpreter and Sapwood itself."""
    good = sys.version_info >= OLDEST_PYTHON
    advice = "" if good else "; Sapwood needs 3.11 or newer"
    detail = f"{platform.python_version()} on {platform.system()} {platform.machine()}, sapwood {__version__}{advice}"
    yield Finding("python", Health.GOOD if good else Health.BROKEN, detail)


def check_torch() -> Iterator[Finding]:
    """Whether torch loads and computes, and whether it sees a CUDA device."""
    try:
        torch = importlib.import_module("torch")
        total = float(torch.ones(2, 2).matmul(torch.ones(2, 2)).sum())
    except (ImportError, OSError, RuntimeError) as error:
        yield Finding("torch", Health.BROKEN, f"does not work: {error}; run scripts/install")
        return
    yield Finding("torch", Health.GOOD if total == 8.0 else Health.BROKEN, str(torch.__version__))
    if torch.cuda.is_available():
        yield Finding("cuda", Health.GOOD, str(torch.cuda.get_device_name(0)))
    elif probe_host().has_cuda:
        yield Finding("cuda", Health.NOTE, "there is a driver but torch sees no device; --device cpu works")


def check_libraries() -> Iterator[Finding]:
    """Whether everything else that serving imports is there."""
    missing = [name for name in LIBRARIES if not _loads(name)]
    if missing:
        yield Finding("libraries", Health.BROKEN, f"cannot import {', '.join(missing)}; run scripts/install")
    else:
        yield Finding("libraries", Health.GOOD, f"{len(LIBRARIES)} load")


def check_cpu() -> Iterator[Finding]:
    """Cores, and the instructions that kernels care about."""
    cores = probe_host().num_cores
    flags = _cpu_flags()
    features = [feature for feature in CPU_FEATURES if feature in flags]
    yield Finding("cpu", Health.GOOD, f"{cores} usable core(s); {' '.join(features) or 'no vector extensions known'}")


def check_memory() -> Iterator[Finding]:
    """Whether there is room for a small model."""
    memory = psutil.virtual_memory()
    detail = f"{memory.available / 2**30:.1f} of {memory.total / 2**30:.1f} GiB available"
    enough = memory.available >= SMALLEST_MEMORY_BYTES
    yield Finding(
        "memory", Health.GOOD if enough else Health.NOTE, detail + ("" if enough else "; the default model wants about 2 GiB")
    )


def check_limits() -> Iterator[Finding]:
    """Whether many connections can be open."""
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    enough = limit == resource.RLIM_INFINITY or limit >= SMALLEST_NUM_FILES
    advice = "" if enough else f"; each connection takes one: raise it with ulimit -n {SMALLEST_NUM_FILES}"
    shown = "any number of" if limit == resource.RLIM_INFINITY else limit
    yield Finding("files", Health.GOOD if enough else Health.NOTE, f"{shown} open files and connections{advice}")


def check_sockets() -> Iterator[Finding]:
    """Whether processes can talk to each other: sockets and the record of steps lie in the folder for temporary files."""
    try:
        folder = Path(tempfile.gettempdir())
        with tempfile.TemporaryFile(dir=folder):
            free = shutil.disk_usage(folder).free
    except OSError as error:
        yield Finding("sockets", Health.BROKEN, f"no folder for temporary files: {error}; set TMPDIR to another folder")
        return
    enough = free >= SMALLEST_TEMPORARY_BYTES
    advice = "" if enough else "; make room there, or set TMPDIR"
    yield Finding("sockets", Health.GOOD if enough else Health.NOTE, f"{folder}, {free / 2**30:.1f} GiB free{advice}")


def check_crashes() -> Iterator[Finding]:
    """What the latest report of a crash says; a --crash-dump-folder elsewhere is not looked at."""
    reports = sorted((catalog.cache_folder() / "crashes").glob("crash-*.json"), key=lambda path: path.stat().st_mtime)
    if not reports:
        yield Finding("crashes", Health.GOOD, "no reports")
        return
    try:
        latest = json.loads(reports[-1].read_text(encoding="utf-8"))
        said = f"{latest['time']}: {'; '.join(latest['what_happened'])}"
    except (OSError, ValueError, KeyError, TypeError) as error:
        said = f"cannot be read ({type(error).__name__})"
    yield Finding("crashes", Health.NOTE, f"{len(reports)} reports; the latest, {reports[-1]}, {said}")


def check_cache() -> Iterator[Finding]:
    """Whether models can be kept."""
    folder = catalog.cache_folder()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            free = shutil.disk_usage(folder).free
    except OSError as error:
        yield Finding("cache", Health.BROKEN, f"cannot write to {folder}: {error}; set SAPWOOD_CACHE to another folder")
        return
    yield Finding("cache", Health.GOOD, f"{folder}, {free / 2**30:.1f} GiB free")


def check_catalog() -> Iterator[Finding]:
    """Which models are there."""
    fetched = [listed.model.name for listed in catalog.list_models() if listed.path]
    if fetched:
        yield Finding("models", Health.GOOD, f"fetched: {', '.join(fetched)}")
    else:
        yield Finding("models", Health.NOTE, f"none fetched yet; `sapwood pull {catalog.default_model}` does")


def check_port(port: int) -> Finding:
    """Whether a server could listen."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError as error:
            return Finding(
                "port", Health.NOTE, f"{port} cannot be used ({error.strerror}); stop what listens there, or pass --port"
            )
    return Finding("port", Health.GOOD, f"{port} is free")


def _loads(name: str) -> bool:
    try:
        importlib.import_module(name)
    except ImportError:
        return False
    return True


def _cpu_flags() -> set[str]:
    """The kernel's list of CPU features; empty where there is none to read."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text(encoding="utf-8", errors="replace").splitlines() if info.is_file() else []
    return {flag for line in lines if line.startswith(("flags", "Features")) for flag in line.partition(":")[2].split()}


CHECKS = (
    check_python,
    check_torch,
    check_libraries,
    check_cpu,
    check_memory,
    check_limits,
    check_cache,
    check_sockets,
    check_catalog,
    check_crashes,
)
