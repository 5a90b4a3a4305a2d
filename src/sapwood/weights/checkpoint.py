"""`Checkpoint`: one view of a model's weights, whatever they are stored in.

Owns the choice of reader and the check that a checkpoint is whole. Does not know formats or models. Invariant: a checkpoint
that opens holds every tensor that its configuration asks for, in the right shape, under its Hugging Face name.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any, Protocol

import torch

from sapwood.core.model_config import ModelConfig
from sapwood.errors import WeightsError
from sapwood.weights.dummy import DummyCheckpoint
from sapwood.weights.gguf import GgufFile
from sapwood.weights.gguf_checkpoint import GgufCheckpoint
from sapwood.weights.gguf_config import read_gguf_config
from sapwood.weights.hf_config import read_hf_config
from sapwood.weights.safetensors import SafetensorsCheckpoint
from sapwood.weights.shapes import check_consistent, expected_shapes
from sapwood.weights.slicing import RawTensor


class Checkpoint(Protocol):
    """An open model. Names are Hugging Face's: `model.layers.3.self_attn.q_proj.weight`, `lm_head.weight`, …

    With `config.tie_embeddings` there need be no `lm_head.weight`: the head is `model.embed_tokens.weight`.
    """

    config: ModelConfig
    metadata: dict[str, Any]
    """GGUF's key-values; empty for other formats. Strings that are not UTF-8 are kept with "surrogateescape"."""
    folder: Path | None
    """The Hugging Face folder, where tokenizer.json lies; None for other formats."""
    file: Path | None
    """The GGUF file; None for other formats."""

    @property
    def nbytes(self) -> int:
        """Bytes of all tensors as stored."""

    def names(self) -> list[str]:
        """The canonical names of all tensors."""

    def shape(self, name: str) -> tuple[int, ...]:
        """Elements per dimension, rows first."""

    def tensor(self, name: str, rows: slice | None = None, cols: slice | None = None) -> torch.Tensor:
        """The tensor, or the part of it in `rows` and `cols` (step one, inside the tensor), on the CPU; never a view to write to.

        float32 from GGUF (dequantised); the stored type from safetensors. Only the part is read, where the format allows it.
        Raises WeightsError when there is no such tensor, or it is stored in a type that cannot be read.
        """

    def raw(self, name: str) -> RawTensor | None:
        """The tensor's stored blocks with rows in canonical order; None where the format has no raw form worth keeping."""

    def fingerprint(self) -> str:
        """A cheap identity of the content, equal for equal files wherever they lie."""

    def close(self) -> None:
        """Lets go of the files; tensors that were given out stay valid."""


def open_checkpoint(path: Path, load_format: str = "auto", seed: int = 0) -> Checkpoint:
    """Opens a GGUF file, or a Hugging Face folder; raises WeightsError when it is missing, incomplete or not supported.

    `load_format` is auto, gguf, safetensors, or dummy: random weights drawn from `seed` in the shape of the model at `path`,
    of which then only the configuration need be there.
    """
    gguf_file = _gguf_file(path)
    if load_format == "dummy":
        return _open_dummy(path, gguf_file, seed)
    if load_format not in ("auto", "gguf" if gguf_file else "safetensors"):
        found = "a GGUF file" if gguf_file else "a Hugging Face folder"
        raise WeightsError(f"{path} is {found}, which cannot be loaded as {load_format!r}; use the load format auto")
    checkpoint: Checkpoint = GgufCheckpoint(gguf_file) if gguf_file else SafetensorsCheckpoint(path)
    try:
        check_complete(checkpoint, str(path))
    except WeightsError:
        checkpoint.close()
        raise
    return checkpoint


def check_complete(checkpoint: Checkpoint, source: str) -> None:
    """Raises WeightsError naming the first tensors that are missing or have another shape than the configuration says."""
    check_consistent(checkpoint.config, source)
    present = set(checkpoint.names())
    expected = expected_shapes(checkpoint.config)
    missing = [name for name in expected if name not in present]
    if missing:
        some = ", ".join(missing[:5])
        raise WeightsError(f"{source} lacks {len(missing)} of {len(expected)} tensors ({some}); download the model again")
    for name, shape in expected.items():
        found = checkpoint.shape(name)
        if found != shape:
            raise WeightsError(
                f"{source}: {name} has the shape {found}, but its configuration asks for {shape}; download it again"
            )


def check_same_model(running: ModelConfig, other: ModelConfig, source: str) -> None:
    """Raises WeightsError unless weights of `other` can take the place of those of `running`; stored types may differ."""
    for field in dataclasses.fields(ModelConfig):
        ours, theirs = getattr(running, field.name), getattr(other, field.name)
        if field.name != "torch_dtype" and ours != theirs:
            what = f"its {field.name} is {theirs!r:.80}, and {ours!r:.80} in the model that runs"
            raise WeightsError(f"{source} is another model: {what}; start another server for it")


def _gguf_file(path: Path) -> Path | None:
    """The GGUF file that `path` is, or that is the only model in the folder `path`; None for a Hugging Face folder."""
    if not path.exists():
        raise WeightsError(
            f"{path} does not exist; give a GGUF file, a Hugging Face folder, or a name that `sapwood models` lists"
        )
    if not path.is_dir():
        return path
    if (path / "config.json").exists():
        return None
    found = sorted(path.glob("*.gguf"))
    if len(found) > 1:
        raise WeightsError(f"{path} holds {len(found)} GGUF files; name one of them, {found[0]} say")
    return found[0] if found else None


def _open_dummy(path: Path, gguf_file: Path | None, seed: int) -> DummyCheckpoint:
    if gguf_file is None:
        dummy = DummyCheckpoint(read_hf_config(path), seed, folder=path)
    else:
        gguf = GgufFile(gguf_file)
        dummy = DummyCheckpoint(read_gguf_config(gguf), seed, file=gguf_file, metadata=gguf.metadata)
        gguf.close()
    check_consistent(dummy.config, str(path))
    return dummy
