"""Random weights for a `ModelConfig`, as a `Checkpoint`: for tests of speed, and of everything but meaning.

Owns the distribution. Does not know files. Invariant: a tensor depends on the seed and its name alone, so every rank that
cuts its part from it sees the same whole.
"""

from __future__ import annotations

import hashlib
import math
from pathlib import Path
from typing import Any

import torch

from sapwood.core.model_config import ModelConfig
from sapwood.errors import WeightsError
from sapwood.weights.shapes import Shape, expected_shapes
from sapwood.weights.slicing import RawTensor, bounds

STANDARD_DEVIATION = 0.02


class DummyCheckpoint:
    """Seeded random weights in the configuration's data type; see `Checkpoint` for what each method promises."""

    def __init__(
        self,
        config: ModelConfig,
        seed: int = 0,
        folder: Path | None = None,
        file: Path | None = None,
        metadata: dict[str, Any] | None = None,
    ) -> None:
        """`folder`, `file` and `metadata` say where a tokenizer may be found; the weights come from `config` and `seed` alone."""
        self.config = config
        self.folder = folder
        self.file = file
        self.metadata = metadata or {}
        self._seed = seed
        self._shapes = expected_shapes(config)
        self._dtype: torch.dtype = getattr(torch, config.torch_dtype)

    @property
    def nbytes(self) -> int:
        return sum(math.prod(shape) for shape in self._shapes.values()) * self._dtype.itemsize

    def names(self) -> list[str]:
        return list(self._shapes)

    def shape(self, name: str) -> Shape:
        found = self._shapes.get(name)
        if found is None:
            raise WeightsError(f"the dummy {self.config.architecture} model has no tensor {name!r}; give real weights")
        return found

    def tensor(self, name: str, rows: slice | None = None, cols: slice | None = None) -> torch.Tensor:
        shape = self.shape(name)
        wanted = tuple(slice(*bounds(want, length, name)) for want, length in zip((rows, cols), shape, strict=False))
        if name.endswith("norm.weight"):
            return torch.full(shape, 0.0 if self.config.norm_plus_one else 1.0, dtype=self._dtype)[wanted]
        generator = torch.Generator().manual_seed(self._tensor_seed(name))
        whole = torch.randn(shape, generator=generator, dtype=torch.float32) * STANDARD_DEVIATION
        return whole[wanted].to(self._dtype).contiguous()

    def raw(self, name: str) -> RawTensor | None:
        self.shape(name)
        return None

    def fingerprint(self) -> str:
        return hashlib.sha256(f"dummy {self._seed} {self.config}".encode()).hexdigest()

    def close(self) -> None:
        """There is nothing to let go of."""

    def _tensor_seed(self, name: str) -> int:
        return int.from_bytes(hashlib.sha256(f"{self._seed} {name}".encode()).digest()[:7], "little")
