"""Packed weights on disk, so that the next start copies them instead of packing again.

Owns the file: a header (identity, layout, one entry per matrix), then the matrices. Does not know models. Invariant: what comes
out of a file was written for the same identity and layout, whole, and unchanged since; anything else is a miss, said once and
replaced.
"""

from __future__ import annotations

import hashlib
import logging
import mmap
import os
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import BinaryIO, Protocol

import msgspec
import numpy as np

from sapwood.core.units import align_up
from sapwood.kernels.native import _native

MAGIC = b"SAPWOOD1"
PREFIX_BYTES = 16  # the magic, the header's length and its CRC, four bytes each
PAGE_BYTES = 4096
SMALLEST_BYTES = 16 << 20  # less is packed faster than a file is worth
LIMIT_BYTES = 16 << 30

logger = logging.getLogger(__name__)


class Entry(msgspec.Struct, frozen=True):
    """One matrix; `offset` counts from the file's start."""

    name: str
    format: str
    rows: int
    k: int
    offset: int
    size: int
    checksum: int


class Header(msgspec.Struct, frozen=True):
    """What the file is for, and what it holds."""

    identity: str
    layout: int
    entries: list[Entry]


class WeightCache(Protocol):
    """Where packed weights outlive the process."""

    def load(self, pool: _native.ThreadPool) -> dict[str, _native.Weight]:
        """All matrices by name; none where there is nothing that can be trusted."""
        ...

    def save(self, weights: Mapping[str, _native.Weight], pool: _native.ThreadPool) -> None:
        """Keep `weights`; a failure is a warning, for the engine runs without."""
        ...


class NoWeightCache:
    """Remembers nothing."""

    def load(self, pool: _native.ThreadPool) -> dict[str, _native.Weight]:
        return {}

    def save(self, weights: Mapping[str, _native.Weight], pool: _native.ThreadPool) -> None:
        pass


NO_WEIGHT_CACHE: WeightCache = NoWeightCache()


class _Untrusted(Exception):
    """Why a file cannot be used."""


class WeightFile:
    """A file under `folder`/<one folder per model>/. The least recently used files go before `folder` exceeds `limit_bytes`."""

    def __init__(self, folder: Path, identity: str, limit_bytes: int = LIMIT_BYTES, smallest_bytes: int = SMALLEST_BYTES) -> None:
        """`identity` says which weights these are, and how they were made from the model's files."""
        model = hashlib.blake2b(identity.encode(), digest_size=16).hexdigest()
        self.path = folder / model / f"weights-{_native.PACKED_VERSION}"
        self._folder, self._identity = folder, identity
        self._limit_bytes, self._smallest_bytes = limit_bytes, smallest_bytes

    def load(self, pool: _native.ThreadPool) -> dict[str, _native.Weight]:
        """See WeightCache. Every matrix is checked against its checksum."""
        try:
            with self.path.open("rb") as file:
                weights = _read(file, self._identity, pool)
            os.utime(self.path)  # recently used
        except FileNotFoundError:
            return {}
        except (_Untrusted, OSError, ValueError) as error:
            logger.warning("the packed weights in %s are not used: %s; they are made anew", self.path, error)
            return {}
        return weights

    def save(self, weights: Mapping[str, _native.Weight], pool: _native.ThreadPool) -> None:
        """See WeightCache. The file appears under its name when it is complete."""
        size = sum(weight.size_bytes for weight in weights.values())
        if not self._smallest_bytes <= size <= self._limit_bytes:
            return
        part = self.path.with_name(f"{self.path.name}.{os.getpid()}.part")
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            _make_room(self._folder, self.path, self._limit_bytes - size)
            try:
                with part.open("wb") as file:
                    _write(file, self._identity, weights, pool)
                part.replace(self.path)
            finally:
                part.unlink(missing_ok=True)
        except OSError as error:
            logger.warning("packed weights are not kept in %s: %s; free some space, or --disable-weight-cache", self.path, error)


def _write(file: BinaryIO, identity: str, weights: Mapping[str, _native.Weight], pool: _native.ThreadPool) -> None:
    def header_at(start: int) -> bytes:
        entries, offset = [], start
        for name, weight in weights.items():
            sums, size = checksums[name], weight.size_bytes
            entries.append(Entry(name, weight.format, weight.rows, weight.k, offset, size, sums))
            offset = align_up(offset + size, PAGE_BYTES)
        return msgspec.json.encode(Header(identity, _native.PACKED_VERSION, entries))

    checksums = {name: weight.checksum(pool) for name, weight in weights.items()}
    # Offsets are numbers of varying length inside the header, so its own length is settled first, with room to spare.
    header = header_at(align_up(PREFIX_BYTES + len(header_at(0)) + 16 * len(weights), PAGE_BYTES))
    file.write(MAGIC + len(header).to_bytes(4, "little") + zlib.crc32(header).to_bytes(4, "little") + header)
    for entry in msgspec.json.decode(header, type=Header).entries:
        file.seek(entry.offset)
        file.write(weights[entry.name].packed.data)


def _read(file: BinaryIO, identity: str, pool: _native.ThreadPool) -> dict[str, _native.Weight]:
    prefix = file.read(PREFIX_BYTES)
    if len(prefix) < PREFIX_BYTES or prefix[: len(MAGIC)] != MAGIC:
        raise _Untrusted("it is no file of packed weights")
    size = os.fstat(file.fileno()).st_size
    length, crc = int.from_bytes(prefix[8:12], "little"), int.from_bytes(prefix[12:], "little")
    raw = file.read(min(length, size))
    if len(raw) != length or zlib.crc32(raw) != crc:
        raise _Untrusted("its header is damaged")
    header = msgspec.json.decode(raw, type=Header)
    if (header.identity, header.layout) != (identity, _native.PACKED_VERSION):
        raise _Untrusted("it belongs to other weights or to another version")
    mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)  # goes with the last view of it
    return {entry.name: _read_matrix(mapped, entry, pool) for entry in header.entries}


def _read_matrix(mapped: mmap.mmap, entry: Entry, pool: _native.ThreadPool) -> _native.Weight:
    """Copied, not used where it is mapped: huge pages make decoding faster, and nobody can change the copy after the check."""
    if entry.size <= 0 or entry.offset < 0 or entry.offset + entry.size > len(mapped):
        raise _Untrusted(f"it ends before {entry.name}")
    packed = np.frombuffer(mapped, dtype=np.uint8, count=entry.size, offset=entry.offset)
    weight = _native.Weight.from_packed(pool, entry.format, packed, entry.rows, entry.k)
    if weight.checksum(pool) != entry.checksum:
        raise _Untrusted(f"{entry.name} is damaged")
    return weight


def _make_room(folder: Path, path: Path, allowed_bytes: int) -> None:
    """Removes the least recently used files beside `path` until the rest takes at most `allowed_bytes`."""
    files = [(found.stat(), found) for found in folder.glob("*/weights-*") if found != path]
    total = sum(stat.st_size for stat, _ in files)
    for stat, found in sorted(files, key=lambda pair: pair[0].st_mtime):
        if total <= allowed_bytes:
            break
        found.unlink(missing_ok=True)
        total -= stat.st_size
