"""Turning ggml's stored blocks into float32.

Owns which storage types can be read and how their rows become numbers; the arithmetic is the `gguf` package's. Does not know
files. Invariant: a type that is not in the list is refused by name, before anything is computed.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from gguf.constants import GGMLQuantizationType
from gguf.quants import dequantize as gguf_dequantize

from sapwood.errors import WeightsError
from sapwood.weights.ggml_types import GgmlType

READABLE_TYPES = ("F32", "F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q4_K", "Q5_K", "Q6_K")

_GROUP_ELEMENTS = 4096  # per library row; it computes 16 rows at a time, and these still fit a second-level cache


def dequantise(data: npt.NDArray[np.uint8], kind: GgmlType) -> npt.NDArray[np.float32]:
    """The numbers stored in `data`, uint8 `[rows, row_bytes]`, as float32 `[rows, columns]`; a new array.

    Raises WeightsError when `kind` is not one of `READABLE_TYPES`.
    """
    check_readable(kind)
    rows, row_bytes = data.shape
    columns = row_bytes // kind.block_bytes * kind.block_size
    if data.size == 0:  # a rank past the end of the vocabulary holds no rows; the library stumbles over that
        return np.empty((rows, columns), np.float32)
    values: npt.NDArray[np.float32] = gguf_dequantize(_regrouped(data, kind), GGMLQuantizationType[kind.name])
    if np.may_share_memory(values, data):  # F32 comes back as a view of the read-only file
        values = values.copy()
    return values.reshape(rows, columns)


def check_readable(kind: GgmlType) -> None:
    """Raises WeightsError when tensors stored as `kind` cannot be dequantised."""
    if kind.name not in READABLE_TYPES:
        readable = ", ".join(READABLE_TYPES)
        raise WeightsError(f"tensors stored as {kind.name} cannot be read; convert the model to one of: {readable}")


def _regrouped(data: npt.NDArray[np.uint8], kind: GgmlType) -> npt.NDArray[np.uint8]:
    """The same blocks cut into rows of a good length, as the library's cost per row is high and rows do not matter to it."""
    width = _GROUP_ELEMENTS // kind.block_size * kind.block_bytes
    return np.ascontiguousarray(data).reshape(-1, width if data.size % width == 0 else data.shape[1])
