"""Recorded arrivals: JSON lines of our own, and the Mooncake format.

Owns the two file formats; knows no scheduler. Invariant: lines are read lazily, a wrong one is named by its number, and equal
prefixes of the record are equal runs of ids here.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import ceil
from pathlib import Path
from zlib import crc32

import msgspec
import numpy as np

from sapwood.core.plan import Int32Array
from sapwood.errors import ConfigError
from sapwood.simulate.workload import VOCAB_SIZE, SimRequest

BLOCK_TOKENS = 512
"""Tokens behind one hash id of a Mooncake trace."""


class ArrivalLine(msgspec.Struct, frozen=True):
    """One line. Ours: `arrival_s` and either `input_ids` or `input_length`, of which the first `prefix_length` ids are those of
    all lines with the same `prefix`. Mooncake's: `timestamp` (ms), `input_length`, `output_length`, `hash_ids` (512 tokens
    each)."""

    output_length: int
    arrival_s: float | None = None
    timestamp: float | None = None
    input_length: int | None = None
    input_ids: list[int] | None = None
    hash_ids: list[int] | None = None
    prefix: str = ""
    prefix_length: int = 0
    priority: int = 0
    namespace: str = ""


def read_trace(path: str, max_requests: int | None = None) -> Iterator[SimRequest]:
    """The requests of a trace in the order of the file, which must be that of arrival; raises ConfigError naming a bad line."""
    decoder = msgspec.json.Decoder(ArrivalLine)
    last_s = 0.0
    try:
        with Path(path).open("rb") as lines:
            for index, line in enumerate(lines):
                if max_requests is not None and index >= max_requests:
                    return
                try:
                    request = _as_request(decoder.decode(line), index)
                except (msgspec.MsgspecError, ValueError) as error:
                    raise ConfigError(f"{path}, line {index + 1}: {error}") from None
                if request.arrival_s < last_s:
                    raise ConfigError(f"{path}, line {index + 1}: arrives before the line above it; sort the file by time")
                last_s = request.arrival_s
                yield request
    except OSError as error:
        raise ConfigError(f"cannot read the trace in {path} ({error.strerror})") from None


def _as_request(line: ArrivalLine, index: int) -> SimRequest:
    arrival_s = line.arrival_s if line.timestamp is None else line.timestamp / 1000
    if arrival_s is None or arrival_s < 0.0:
        raise ValueError("needs arrival_s (seconds) or timestamp (milliseconds), not negative")
    if line.output_length < 0:
        raise ValueError("output_length must not be negative")
    prompt = _prompt(line, index)
    if not len(prompt):
        raise ValueError("the prompt is empty; input_length must be at least 1")
    return SimRequest(arrival_s, prompt, line.output_length, priority=line.priority, namespace=line.namespace)


def _prompt(line: ArrivalLine, index: int) -> Int32Array:
    if line.input_ids is not None:
        return np.array(line.input_ids, dtype=np.int32)
    if line.input_length is None:
        raise ValueError("needs input_ids or input_length")
    if line.hash_ids is not None:
        if len(line.hash_ids) != ceil(line.input_length / BLOCK_TOKENS):
            raise ValueError(f"{line.input_length} tokens are not {len(line.hash_ids)} blocks of {BLOCK_TOKENS}")
        starts = np.array(line.hash_ids, dtype=np.int64) * BLOCK_TOKENS
        return _as_ids(np.add.outer(starts, np.arange(BLOCK_TOKENS)).ravel()[: line.input_length])
    shared = _run(crc32(line.prefix.encode()), min(line.prefix_length, line.input_length)) if line.prefix else _run(0, 0)
    return np.concatenate([shared, _run(index, line.input_length - len(shared))])


def _run(key: int, count: int) -> Int32Array:
    """Ids that belong to a key."""
    return np.random.default_rng(key).integers(0, VOCAB_SIZE, count, dtype=np.int32)


def _as_ids(numbers: np.ndarray[tuple[int, ...], np.dtype[np.int64]]) -> Int32Array:
    ids: Int32Array = (numbers % VOCAB_SIZE).astype(np.int32)
    return ids
