"""Reading GGUF files: the metadata, the table of tensors, and their bytes, all straight from a memory map.

Owns the container format, versions 2 and 3, little-endian. Does not know architectures, dequantisation or torch. Invariant:
no count, length, size or offset that the file claims is believed before it was checked against the file's real length, so a
lying file is a `WeightsError` and never a crash, a huge allocation or an endless loop.
"""

from __future__ import annotations

import math
import mmap
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from sapwood.core.units import align_up
from sapwood.errors import WeightsError
from sapwood.weights.fingerprint import fingerprint_files
from sapwood.weights.ggml_types import GGML_TYPES, GgmlType

MAGIC = b"GGUF"
VERSIONS = (2, 3)
DEFAULT_ALIGNMENT = 32
MAX_ALIGNMENT = 1 << 20
MAX_KEYS = 1 << 16
MAX_TENSORS = 1 << 20
MAX_DIMENSIONS = 4
MAX_NAME_BYTES = 1 << 10
MAX_ARRAY_LENGTH = 1 << 24
MAX_HEADER_BYTES = 1 << 29
MAX_ARRAY_DEPTH = 3

_U32 = struct.Struct("<I")
_U64 = struct.Struct("<Q")
_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_STRING, _ARRAY = 8, 9
_MIN_BYTES = {_STRING: 8, _ARRAY: 12} | {kind: struct.calcsize("<" + code) for kind, code in _SCALARS.items()}

Bytes = npt.NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """One tensor of a file. `shape` is rows first (numpy order, the reverse of GGUF's); `offset` counts from the file's start."""

    name: str
    shape: tuple[int, ...]
    type: GgmlType
    offset: int

    @property
    def num_rows(self) -> int:
        return math.prod(self.shape[:-1])

    @property
    def row_bytes(self) -> int:
        return self.type.row_bytes(self.shape[-1])

    @property
    def nbytes(self) -> int:
        return self.num_rows * self.row_bytes


class _Cursor:
    """Reads values one after the other from a mapped file; every read checks the end first."""

    def __init__(self, buffer: mmap.mmap | bytes) -> None:
        self._buffer = buffer
        self.end = min(len(buffer), MAX_HEADER_BYTES)
        self.position = 0

    def take(self, count: int, what: str) -> int:
        """Claims the next `count` bytes and returns where they start."""
        start = self.position
        if count > self.end - start:
            raise WeightsError(f"the file ends inside {what}: it needs {count} bytes at byte {start} and has {self.end - start}")
        self.position = start + count
        return start

    def u32(self, what: str) -> int:
        value: int = _U32.unpack_from(self._buffer, self.take(4, what))[0]
        return value

    def u64(self, what: str) -> int:
        value: int = _U64.unpack_from(self._buffer, self.take(8, what))[0]
        return value

    def count(self, what: str, limit: int, min_bytes: int) -> int:
        """A 64-bit count of things that take at least `min_bytes` each, checked against `limit` and the rest of the file."""
        value = self.u64(what)
        if value > limit or value * min_bytes > self.end - self.position:
            raise WeightsError(f"the file claims {value} {what}, more than it can hold")
        return value

    def name(self, what: str) -> str:
        length = self.u64(what)
        if length > MAX_NAME_BYTES:
            raise WeightsError(f"the file claims a {what} of {length} bytes; the limit is {MAX_NAME_BYTES}")
        start = self.take(length, what)
        return str(self._buffer[start : start + length], "utf-8", "surrogateescape")

    def value(self, kind: int, what: str, depth: int = 0) -> Any:
        """One metadata value of GGUF value type `kind`."""
        if kind == _STRING:
            return self.strings(1, what)[0]
        if kind == _ARRAY:
            return self.array(what, depth + 1)
        return self.scalars(kind, 1, what)[0]

    def array(self, what: str, depth: int) -> list[Any]:
        if depth > MAX_ARRAY_DEPTH:
            raise WeightsError(f"{what} nests arrays more than {MAX_ARRAY_DEPTH} deep")
        kind = self.u32(what)
        if kind not in _MIN_BYTES:
            raise WeightsError(f"{what} has the unknown value type {kind}")
        count = self.count(f"elements of {what}", MAX_ARRAY_LENGTH, _MIN_BYTES[kind])
        if kind == _STRING:
            return self.strings(count, what)
        if kind == _ARRAY:
            return [self.array(what, depth + 1) for _ in range(count)]
        return self.scalars(kind, count, what)

    def scalars(self, kind: int, count: int, what: str) -> list[Any]:
        code = _SCALARS.get(kind)
        if code is None:
            raise WeightsError(f"{what} has the unknown value type {kind}")
        start = self.take(count * _MIN_BYTES[kind], what)
        return list(struct.unpack_from(f"<{count}{code}", self._buffer, start))

    def strings(self, count: int, what: str) -> list[str]:
        """`count` length-prefixed strings. The loop is tight on purpose: vocabularies hold hundreds of thousands."""
        buffer, end, position = self._buffer, self.end, self.position
        read_length = _U64.unpack_from
        found: list[str] = []
        for _ in range(count):
            start = position + 8
            if start > end:
                raise WeightsError(f"the file ends inside {what}")
            position = start + read_length(buffer, position)[0]
            if position > end:
                raise WeightsError(f"the file ends inside {what}: a string claims {position - start} bytes")
            found.append(str(buffer[start:position], "utf-8", "surrogateescape"))
        self.position = position
        return found


class GgufFile:
    """An open GGUF file: `metadata` (key to int, float, bool, str or list), `tensors` (name to `TensorInfo`) and raw bytes.

    Strings that are not UTF-8 (byte tokens of some vocabularies) keep their bytes: encode them with "surrogateescape".
    """

    def __init__(self, path: Path) -> None:
        """Maps `path` and checks its header; raises WeightsError when the file is missing, damaged or of another format."""
        self.path = path
        self._map = _map_file(path)
        try:
            cursor = _Cursor(self._map)
            num_tensors, num_keys = _read_counts(self._map, cursor)
            self.metadata = _read_metadata(cursor, num_keys)
            self.tensors = _read_tensors(cursor, num_tensors, _alignment(self.metadata), len(self._map))
        except WeightsError as error:
            self.close()
            raise WeightsError(
                f"{path} is not a usable GGUF file: {error.message}. Download it again, or pick another."
            ) from None
        self.header_bytes = cursor.position

    @property
    def nbytes(self) -> int:
        """Bytes of all tensors as stored."""
        return sum(info.nbytes for info in self.tensors.values())

    def info(self, name: str) -> TensorInfo:
        """The entry of tensor `name`; raises WeightsError when the file has none."""
        found = self.tensors.get(name)
        if found is None:
            raise WeightsError(f"{self.path} has no tensor {name!r}; the file is incomplete: download it again")
        return found

    def raw(self, name: str) -> Bytes:
        """The stored bytes of tensor `name`: read-only uint8 `[num_rows, row_bytes]`, a view of the file, not a copy."""
        info = self.info(name)
        flat = np.frombuffer(self._map, dtype=np.uint8, count=info.nbytes, offset=info.offset)
        return flat.reshape(info.num_rows, info.row_bytes)

    def fingerprint(self) -> str:
        """A cheap identity of the content (see `fingerprint_files`)."""
        return fingerprint_files([(self.path, self.header_bytes)])

    def close(self) -> None:
        """Lets go of the file; arrays that `raw` gave out stay valid, the mapping goes with the last of them."""
        self._map = mmap.mmap(-1, 1)  # dropping the reference: closing a mapping that has views is an error


def _map_file(path: Path) -> mmap.mmap:
    try:
        with path.open("rb") as file:
            return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except (OSError, ValueError) as error:  # ValueError: an empty file cannot be mapped
        raise WeightsError(f"cannot read {path}: {error}. Check the path and its permissions.") from None


def _read_counts(buffer: mmap.mmap, cursor: _Cursor) -> tuple[int, int]:
    start = cursor.take(4, "the magic number")
    if buffer[start : start + 4] != MAGIC:
        raise WeightsError("it does not start with the letters GGUF")
    version = cursor.u32("the version")
    if version not in VERSIONS:
        big_endian = int.from_bytes(version.to_bytes(4, "little"), "big") in VERSIONS
        detail = "is big-endian" if big_endian else f"has version {version}"
        raise WeightsError(f"it {detail}; little-endian versions 2 and 3 are supported, convert it with llama.cpp")
    num_tensors = cursor.count("tensors", MAX_TENSORS, 8 + 4 + 8 + 4 + 8)
    return num_tensors, cursor.count("metadata keys", MAX_KEYS, 8 + 4 + 1)


def _read_metadata(cursor: _Cursor, num_keys: int) -> dict[str, Any]:
    metadata: dict[str, Any] = {}
    for _ in range(num_keys):
        key = cursor.name("metadata key")
        if key in metadata:
            raise WeightsError(f"the metadata key {key!r} occurs twice")
        metadata[key] = cursor.value(cursor.u32(f"the type of {key!r}"), f"the value of {key!r}")
    return metadata


def _alignment(metadata: dict[str, Any]) -> int:
    value = metadata.get("general.alignment", DEFAULT_ALIGNMENT)
    if not isinstance(value, int) or not 0 < value <= MAX_ALIGNMENT or value & (value - 1):
        raise WeightsError(f"general.alignment is {value!r}, not a power of two up to {MAX_ALIGNMENT}")
    return value


def _read_tensors(cursor: _Cursor, num_tensors: int, alignment: int, file_bytes: int) -> dict[str, TensorInfo]:
    relative = [_read_tensor(cursor, alignment) for _ in range(num_tensors)]
    data_start = align_up(cursor.position, alignment)
    tensors: dict[str, TensorInfo] = {}
    for entry in relative:
        info = TensorInfo(entry.name, entry.shape, entry.type, data_start + entry.offset)
        if info.offset + info.nbytes > file_bytes:
            missing = info.offset + info.nbytes - file_bytes
            raise WeightsError(f"the tensor {info.name!r} reaches {missing} bytes past the end of the file")
        if info.name in tensors:
            raise WeightsError(f"the tensor {info.name!r} occurs twice")
        tensors[info.name] = info
    return tensors


def _read_tensor(cursor: _Cursor, alignment: int) -> TensorInfo:
    """One entry of the table, its offset still relative to the start of the data."""
    name = cursor.name("tensor name")
    num_dimensions = cursor.u32(f"the dimensions of {name!r}")
    if not 0 < num_dimensions <= MAX_DIMENSIONS:
        raise WeightsError(f"the tensor {name!r} claims {num_dimensions} dimensions")
    shape = tuple(cursor.u64(f"the shape of {name!r}") for _ in range(num_dimensions))[::-1]
    type_id = cursor.u32(f"the type of {name!r}")
    if type_id not in GGML_TYPES:
        raise WeightsError(f"the tensor {name!r} has the unknown type {type_id}")
    kind = GGML_TYPES[type_id]
    if 0 in shape or shape[-1] % kind.block_size:
        raise WeightsError(f"the tensor {name!r} of shape {shape} cannot be stored as {kind.name}")
    offset = cursor.u64(f"the offset of {name!r}")
    if offset % alignment:
        raise WeightsError(f"the tensor {name!r} starts at {offset}, which is not a multiple of {alignment}")
    return TensorInfo(name, shape, kind, offset)
