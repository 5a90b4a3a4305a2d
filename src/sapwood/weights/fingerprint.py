"""A cheap identity of files of weights, for keys of stored KV and for logs.

Knows sizes and bytes, not formats. Invariant: reads a bounded number of bytes however large the files are, and does not
depend on names or times.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from pathlib import Path

NUM_SAMPLES = 1024
SAMPLE_BYTES = 64


def fingerprint_files(files: Iterable[tuple[Path, int]]) -> str:
    """Hex digest over (path, header bytes) pairs: each file's size, its whole header, and samples spread over the rest.

    Headers alone would not do: two fine-tunings of one model have equal headers and sizes.
    """
    digest = hashlib.sha256()
    for path, header_bytes in files:
        size = path.stat().st_size
        digest.update(size.to_bytes(8, "little"))
        with path.open("rb") as file:
            digest.update(file.read(header_bytes))
            stride = max(SAMPLE_BYTES, (size - header_bytes) // NUM_SAMPLES)
            for offset in range(header_bytes, size, stride):
                file.seek(offset)
                digest.update(file.read(SAMPLE_BYTES))
    return digest.hexdigest()
