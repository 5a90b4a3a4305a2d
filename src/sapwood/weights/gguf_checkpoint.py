"""A GGUF file as a `Checkpoint`: canonical names, one RoPE layout, dequantised tensors or raw blocks.

Owns the translation from llama.cpp's conventions. Does not know the container's bytes or the models. Invariant: `raw` and
`tensor` agree: both are in canonical row order, and the second is the dequantisation of the first.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from sapwood.core.units import align_down, align_up
from sapwood.errors import WeightsError
from sapwood.weights.dequant import check_readable, dequantise
from sapwood.weights.gguf import Bytes, GgufFile, TensorInfo
from sapwood.weights.gguf_config import read_gguf_config
from sapwood.weights.gguf_names import canonical_name, half_split_rows
from sapwood.weights.slicing import RawTensor, bounds

_INTERLEAVED = ("attn_q.weight", "attn_q.bias", "attn_k.weight", "attn_k.bias")


class GgufCheckpoint:
    """An open GGUF model; see `Checkpoint` for what each method promises."""

    def __init__(self, path: Path) -> None:
        self.file: Path | None = path
        self.folder: Path | None = None
        self._gguf = GgufFile(path)
        self.config = read_gguf_config(self._gguf)
        self.metadata: dict[str, Any] = self._gguf.metadata
        self._tensors = _canonical_tensors(self._gguf, self.config.post_norms)

    @property
    def nbytes(self) -> int:
        return self._gguf.nbytes

    def names(self) -> list[str]:
        return list(self._tensors)

    def shape(self, name: str) -> tuple[int, ...]:
        return self._info(name).shape

    def tensor(self, name: str, rows: slice | None = None, cols: slice | None = None) -> torch.Tensor:
        info = self._info(name)
        if len(info.shape) == 1:  # a vector is one stored row: what `rows` selects are its elements
            first, last = bounds(rows, info.shape[0], name)
            return torch.from_numpy(self._vector(info)[first:last].copy())
        first, last = bounds(cols, info.shape[1], name)
        block = info.type.block_size
        start, stop = align_down(first, block), align_up(last, block)
        stored = self._rows(info, slice(*bounds(rows, info.shape[0], name)))
        stored = stored[:, info.type.row_bytes(start) : info.type.row_bytes(stop)]
        values = dequantise(stored, info.type)[:, first - start : last - start]
        return torch.from_numpy(np.ascontiguousarray(values))

    def raw(self, name: str) -> RawTensor | None:
        info = self._info(name)
        stored = self._gguf.raw(info.name) if len(info.shape) == 1 else self._rows(info, slice(None))
        return RawTensor(info.type, info.shape, stored)

    def fingerprint(self) -> str:
        return self._gguf.fingerprint()

    def close(self) -> None:
        self._gguf.close()

    def _info(self, name: str) -> TensorInfo:
        found = self._tensors.get(name)
        if found is None:
            raise WeightsError(f"{self.file} has no tensor {name!r}; the file is incomplete: download it again")
        return found

    def _vector(self, info: TensorInfo) -> npt.NDArray[np.float32]:
        values = dequantise(self._gguf.raw(info.name), info.type)[0]
        order = self._row_order(info)
        return values if order is None else np.ascontiguousarray(values[order])

    def _rows(self, info: TensorInfo, rows: slice) -> Bytes:
        """Stored rows in canonical order; a copy only where the order differs."""
        stored = self._gguf.raw(info.name)
        order = self._row_order(info)
        return stored[rows] if order is None else stored[order[rows]]

    def _row_order(self, info: TensorInfo) -> npt.NDArray[np.intp] | None:
        if self.config.architecture != "llama" or not info.name.endswith(_INTERLEAVED):
            return None
        return half_split_rows(info.shape[0] // self.config.head_dim, self.config.head_dim)


def _canonical_tensors(gguf: GgufFile, post_norms: bool) -> dict[str, TensorInfo]:
    """The model's tensors by canonical name; raises WeightsError when one is stored in a type that cannot be read."""
    found: dict[str, TensorInfo] = {}
    for info in gguf.tensors.values():
        name = canonical_name(info.name, post_norms)
        if name is None or len(info.shape) > 2:  # neither is a part of the models that are supported
            continue
        try:
            check_readable(info.type)
        except WeightsError as error:
            raise WeightsError(f"{gguf.path}, {info.name}: {error.message}") from None
        found[name] = info
    return found
