"""What the checkpoints share: parts of tensors, and raw quantised tensors.

Small types and checks; no files. Invariant: a slice that comes out lies inside the tensor and has step one.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from sapwood.weights.ggml_types import GgmlType


class RawTensor(NamedTuple):
    """A tensor as stored: `data` is read-only uint8 `[rows, row_bytes]`; `shape` counts elements, rows first."""

    type: GgmlType
    shape: tuple[int, ...]
    data: npt.NDArray[np.uint8]


def bounds(part: slice | None, length: int, name: str) -> tuple[int, int]:
    """First and one-past-last index of `part` of a dimension of `length`; raises ValueError when it does not lie inside."""
    if part is None:
        return 0, length
    first, last, step = part.indices(length)
    wanted_last = length if part.stop is None else part.stop
    if step != 1 or first > last or wanted_last > length:
        raise ValueError(f"{part} is not a part of a dimension of {length} of {name!r}")
    return first, last
