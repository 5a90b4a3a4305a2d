"""Takes named tensors from a checkpoint, cuts this rank's part, and hands it to the kernel backend to prepare.

Knows names only as prefixes that its callers give; does not know architectures or file formats. Invariant: a matrix is read
once, and only the rows and columns that this rank holds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from sapwood.core.model_config import ModelConfig
from sapwood.distributed.group import Group
from sapwood.kernels.api import Kernels, Linear, Norm


class TensorSource(Protocol):
    """A checkpoint: tensors by Hugging Face name, q and k rows in half-split rotary order."""

    @property
    def config(self) -> ModelConfig: ...

    def tensor(self, name: str, rows: slice | None = None, cols: slice | None = None) -> Tensor:
        """The tensor, or its rows and columns, on the CPU in floating point; raises WeightsError if there is none."""
        ...


@dataclass(frozen=True, slots=True)
class Part:
    """Rows of one checkpoint matrix; `prefix` is its name without ".weight"."""

    prefix: str
    rows: range | None = None


@dataclass(frozen=True, slots=True)
class WeightLoader:
    """What layers are built with: where weights come from, where they go, and who this rank is."""

    source: TensorSource
    kernels: Kernels
    group: Group
    device: torch.device
    dtype: torch.dtype

    @property
    def config(self) -> ModelConfig:
        """Facts of the model being loaded."""
        return self.source.config

    def stacked(self, parts: Sequence[Part], bias: bool) -> Linear:
        """The parts' rows on top of one another: a matrix whose outputs are split over the ranks."""
        weights = [self._placed(f"{part.prefix}.weight", _as_slice(part.rows)) for part in parts]
        if not bias:
            return self.kernels.prepare_linear(weights, None)
        biases = [self._placed(f"{part.prefix}.bias", _as_slice(part.rows)) for part in parts]
        return self.kernels.prepare_linear(weights, torch.cat(biases))

    def reduced(self, prefix: str, columns: range, bias: bool) -> Linear:
        """A matrix whose inputs are split over the ranks; the outputs are summed afterwards, so one rank adds the bias."""
        weight = self._placed(f"{prefix}.weight", None, _as_slice(columns))
        offset = self._placed(f"{prefix}.bias") if bias and self.group.rank == 0 else None
        return self.kernels.prepare_linear([weight], offset)

    def vocab(self, prefix: str, rows: range) -> Linear:
        """Rows of an embedding table or head; rows past the end of the vocabulary are zero."""
        stop = min(rows.stop, self.config.vocab_size)
        weight = self._placed(f"{prefix}.weight", slice(min(rows.start, stop), stop))
        padding = len(rows) - weight.shape[0]
        return self.kernels.prepare_linear([F.pad(weight, (0, 0, 0, padding)) if padding else weight], None)

    def norm(self, prefix: str) -> Norm:
        """A whole RMSNorm weight in float32, one added where the checkpoint stores w - 1."""
        weight = self.source.tensor(f"{prefix}.weight").to(self.device, torch.float32)
        return Norm(weight + 1.0 if self.config.norm_plus_one else weight, self.config.norm_eps)

    def _placed(self, name: str, rows: slice | None = None, cols: slice | None = None) -> Tensor:
        return self.source.tensor(name, rows, cols).to(self.device, self.dtype)


def _as_slice(part: range | None) -> slice | None:
    return None if part is None else slice(part.start, part.stop)
