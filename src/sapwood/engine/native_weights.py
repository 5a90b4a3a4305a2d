"""A checkpoint's tensors as native weights: packed without loss from the blocks that the file holds, or rounded when asked to.

Knows tensor names only as its callers give them; does not know architectures. Invariant: a matrix is packed once however often it
is asked for (a tied head is the embedding table), and what the file stores quantised is neither widened nor rounded again.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from sapwood.core.model_config import ModelConfig, RopeConfig
from sapwood.errors import WeightsError
from sapwood.kernels.native import _native
from sapwood.layers.rotary import rope_tables
from sapwood.weights.shapes import EDGE_MATRICES
from sapwood.weights.slicing import RawTensor

RAW_FORMATS = {torch.float32: "f32", torch.bfloat16: "bf16", torch.float16: "f16"}


QUANTISED_FORMATS = {"int8": "q8_0", "int4": "q4_1"}


class StoredTensors(Protocol):
    """What is read of a `Checkpoint`, whose methods these are."""

    @property
    def config(self) -> ModelConfig: ...

    def shape(self, name: str) -> tuple[int, ...]:
        """Elements per dimension, rows first."""
        ...

    def tensor(self, name: str) -> torch.Tensor:
        """The tensor in a type of torch."""
        ...

    def raw(self, name: str) -> RawTensor | None:
        """Its stored blocks, where the format keeps any."""
        ...


class NativeWeights:
    """Reads from one checkpoint, packs with the compute threads what `packed` does not hold already.

    `quantization` is none, int8 or int4: to what matrices are rounded that the file stores unquantised.
    """

    def __init__(
        self,
        checkpoint: StoredTensors,
        pool: _native.ThreadPool,
        max_len: int,
        packed: Mapping[str, _native.Weight],
        quantization: str = "none",
    ) -> None:
        self._checkpoint = checkpoint
        self._pool = pool
        self._max_len = max_len
        self._ropes: dict[RopeConfig, _native.Rope] = {}
        self._packed = packed
        self._quantization = quantization
        self.matrices: dict[str, _native.Weight] = {}
        """Everything that was asked for so far."""
        self.num_new = 0
        """How many of them had to be packed."""

    def weight(self, name: str) -> _native.Weight:
        """The matrix called `name`, packed; raises WeightsError for a storage type that has no packed layout."""
        if name not in self.matrices:
            known = self._packed.get(name)
            if known is None or (known.rows, known.k) != self._checkpoint.shape(name):
                known, self.num_new = self._pack(name), self.num_new + 1
            self.matrices[name] = known
        return self.matrices[name]

    def vector(self, name: str) -> NDArray[np.float32]:
        """A one-dimensional tensor in float32."""
        return np.ascontiguousarray(self._checkpoint.tensor(name).float().numpy())

    def rope(self, rope: RopeConfig) -> _native.Rope:
        """Cosines and sines for every position that may be asked for, one object for all layers of a kind."""
        if rope not in self._ropes:
            tables = rope_tables(rope, self._checkpoint.config.head_dim, self._max_len, torch.device("cpu"))
            self._ropes[rope] = _native.Rope(tables.cos.numpy().reshape(-1), tables.sin.numpy().reshape(-1))
        return self._ropes[rope]

    def _pack(self, name: str) -> _native.Weight:
        stored = self._checkpoint.raw(name)
        if stored is not None:
            format_name, shape, data = stored.type.name.lower(), stored.shape, stored.data
        else:
            tensor = self._checkpoint.tensor(name).contiguous()
            if self._quantization != "none":
                bits = "int8" if name in EDGE_MATRICES else self._quantization
                return _native.Weight.quantise(self._pool, QUANTISED_FORMATS[bits], tensor.float().numpy())
            format_name, shape = RAW_FORMATS[tensor.dtype], tuple(tensor.shape)
            data = tensor.view(torch.uint8).numpy()
        try:
            return _native.Weight.pack(self._pool, format_name, np.ascontiguousarray(data).reshape(-1), *shape)
        except _native.NativeError as error:
            raise WeightsError(f"{name}: {error}; run with --kernel-backend reference") from None
