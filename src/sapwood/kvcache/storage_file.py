"""Pages of KV in a folder: segments that only ever grow at their end, and are dropped whole, oldest first.

Owns the folder (one process at a time) and the place of every page in it. Invariant: a record counts only if its checksum, over
fingerprint, key and content, is right when it is read; so a kill, a full disk or a flipped bit costs pages, never wrong ones.

    <folder>/lock                       held while a process uses the folder
    <folder>/<fingerprint>-<number>.kv  header (magic, record size, fingerprint), then records of one size: key, checksum, page
"""

from __future__ import annotations

import fcntl
import logging
import os
import struct
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import BinaryIO

from sapwood.errors import ConfigError
from sapwood.kvcache.keys import KEY_BYTES
from sapwood.kvcache.storage import CHECKSUM_BYTES, StorageOptions, page_checksum, storage_backends

logger = logging.getLogger(__name__)

MAGIC = b"SAPWKV01"
HEADER = struct.Struct("<8sQ32s16x")
RECORD_HEAD_BYTES = KEY_BYTES + CHECKSUM_BYTES
NUM_SEGMENTS = 16
"""A full folder consists of about so many segments, and loses one of them at a time."""


class Segment:
    """One file of records, open for reading (and, the newest, for writing)."""

    def __init__(self, path: Path, file: BinaryIO) -> None:
        self.path = path
        self.file = file
        self.keys: list[bytes] = []

    def close(self) -> None:
        """Close the file."""
        self.file.close()


class FileStorage:
    """See `Storage` for the contract."""

    def __init__(self, options: StorageOptions) -> None:
        self._options = options
        self._record_bytes = RECORD_HEAD_BYTES + options.page_bytes
        self._max_records = max((options.max_bytes // NUM_SEGMENTS - HEADER.size) // self._record_bytes, 1)
        self._folder = Path(options.where).expanduser()
        self._mutex = threading.Lock()
        self._places: dict[bytes, tuple[Segment, int]] = {}
        self._segments: list[Segment] = []
        self._number = 0
        self._can_append = False
        self._lock_file = self._lock_folder()
        self._open_segments()

    # ------------------------------------------------------------------------------------------------- opening
    def _lock_folder(self) -> BinaryIO:
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            lock = open(self._folder / "lock", "ab")  # noqa: SIM115 - held until `close`
        except OSError as error:
            raise ConfigError(f"the cache storage {self._folder} cannot be used: {error}; choose another path") from error
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            lock.close()
            message = f"the cache storage {self._folder} is used by another process; give each server a path of its own"
            raise ConfigError(message) from error
        return lock

    def _open_segments(self) -> None:
        """Index what earlier processes left; what does not belong to this model is left alone (until room is needed)."""
        num_foreign = 0
        for path in self._paths():
            self._number = max(self._number, _number_of(path))
            if not path.name.startswith(self._prefix):
                num_foreign += 1
                continue
            try:
                self._index(path)
            except (OSError, ValueError) as error:
                logger.warning("the cache file %s is ignored: %s", path, error)
        if num_foreign:
            logger.info("%d cache files in %s belong to other models or settings and are not used", num_foreign, self._folder)
        if self._places:
            logger.info("the cache storage %s holds %d pages", self._folder, len(self._places))

    @property
    def _prefix(self) -> str:
        return self._options.fingerprint.hex()[:16] + "-"

    def _paths(self) -> list[Path]:
        return sorted(self._folder.glob("*.kv"), key=lambda path: (_number_of(path), path.name))

    def _index(self, path: Path) -> None:
        """Learn the places of a segment's whole records; their content is checked when it is read."""
        file = open(path, "rb")  # noqa: SIM115 - kept open for reading
        segment = Segment(path, file)
        try:
            head = file.read(HEADER.size)
            if len(head) < HEADER.size:
                raise ValueError("it is cut short")
            if HEADER.unpack(head) != (MAGIC, self._record_bytes, self._options.fingerprint):
                raise ValueError("it was written for another model, other settings or by another version")
            num_records = (os.fstat(file.fileno()).st_size - HEADER.size) // self._record_bytes
            for number in range(num_records):
                offset = HEADER.size + number * self._record_bytes
                key = os.pread(file.fileno(), KEY_BYTES, offset)
                self._places[key] = (segment, offset)
                segment.keys.append(key)
        except BaseException:
            segment.close()
            raise
        self._segments.append(segment)

    # ------------------------------------------------------------------------------------------------- using
    def count_leading(self, keys: Sequence[bytes]) -> int:
        """How many of the keys, from the first on, are held."""
        with self._mutex:
            for count, key in enumerate(keys):
                if key not in self._places:
                    return count
        return len(keys)

    def read(self, key: bytes, into: memoryview) -> bool:
        """Fill `into` with a page and prove it; a record that fails is forgotten."""
        head = bytearray(RECORD_HEAD_BYTES)
        with self._mutex:
            place = self._places.get(key)
            if place is None:
                return False
            segment, offset = place
            num_read = os.preadv(segment.file.fileno(), [head, into], offset)
        checksum = page_checksum(self._options.fingerprint, key, into)
        if num_read == self._record_bytes and head == key + checksum:
            return True
        logger.warning("a page in the cache file %s is damaged and ignored", segment.path)
        with self._mutex:
            if self._places.get(key) == place:
                del self._places[key]
        return False

    def write(self, key: bytes, data: memoryview) -> None:
        """Append a page to the newest segment."""
        with self._mutex:
            if key in self._places:
                return
        checksum = page_checksum(self._options.fingerprint, key, data)
        with self._mutex:
            if not self._can_append or len(self._segments[-1].keys) >= self._max_records:
                self._begin_segment()
            segment = self._segments[-1]
            offset = HEADER.size + len(segment.keys) * self._record_bytes
            num_written = os.pwritev(segment.file.fileno(), [key, checksum, data], offset)
            if num_written != self._record_bytes:
                raise OSError(f"only {num_written} of {self._record_bytes} bytes could be written to {segment.path}")
            segment.keys.append(key)
            self._places[key] = (segment, offset)

    def close(self) -> None:
        """Let go of the folder."""
        for segment in self._segments:
            segment.close()
        self._lock_file.close()

    # ------------------------------------------------------------------------------------------------- room
    def _begin_segment(self) -> None:
        self._make_room()
        self._number += 1
        path = self._folder / f"{self._prefix}{self._number:08d}.kv"
        file = open(path, "x+b", buffering=0)  # noqa: SIM115 - kept open
        file.write(HEADER.pack(MAGIC, self._record_bytes, self._options.fingerprint))
        self._segments.append(Segment(path, file))
        self._can_append = True

    def _make_room(self) -> None:
        """Delete the oldest segments, whoever wrote them, until a new one fits."""
        sizes = {path: path.stat().st_size for path in self._paths()}
        total = sum(sizes.values()) + HEADER.size + self._max_records * self._record_bytes
        for path, size in sizes.items():
            if total <= self._options.max_bytes:
                return
            self._forget(path)
            path.unlink()
            total -= size

    def _forget(self, path: Path) -> None:
        for segment in [segment for segment in self._segments if segment.path == path]:
            for key in segment.keys:
                if self._places.get(key, (None, 0))[0] is segment:
                    del self._places[key]
            self._segments.remove(segment)
            segment.close()


def _number_of(path: Path) -> int:
    number = path.stem.rpartition("-")[2]
    return int(number) if number.isdecimal() else 0


@storage_backends.register("file")
def open_file_storage(options: StorageOptions) -> FileStorage:
    """A folder on this machine."""
    return FileStorage(options)
