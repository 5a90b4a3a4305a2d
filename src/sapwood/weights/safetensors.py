"""A Hugging Face folder of safetensors, whole or sharded, as a `Checkpoint`.

Owns which file holds which tensor, and the prefixes that multimodal and bare models put before the canonical names. Does not
know what tensors mean. Invariant: nothing outside the folder is opened, and tensors are read lazily, one or a part at a time.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from sapwood.errors import WeightsError
from sapwood.weights.fingerprint import fingerprint_files
from sapwood.weights.hf_config import read_hf_config, read_json
from sapwood.weights.slicing import RawTensor, bounds

SINGLE_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"
ELEMENT_BYTES = {"F32": 4, "F16": 2, "BF16": 2}
_PREFIXES = {"model.language_model.": "model.", "language_model.model.": "model.", "language_model.lm_head.": "lm_head."}
_BARE = ("layers.", "embed_tokens.", "norm.")


class SafetensorsCheckpoint:
    """An open Hugging Face folder; see `Checkpoint` for what each method promises."""

    def __init__(self, folder: Path) -> None:
        self.folder: Path | None = folder
        self._root = folder
        self.file: Path | None = None
        self.config = read_hf_config(folder)
        self.metadata: dict[str, Any] = {}
        self._shards = _find_shards(folder)
        self._handles = {shard: open_shard(folder / shard) for shard in self._shards}
        self._places = self._locate()

    @property
    def nbytes(self) -> int:
        parts = [self._part(name) for name in self._places]
        return sum(math.prod(part.get_shape()) * ELEMENT_BYTES[part.get_dtype()] for part in parts)

    def names(self) -> list[str]:
        return list(self._places)

    def shape(self, name: str) -> tuple[int, ...]:
        return tuple(self._part(name).get_shape())

    def tensor(self, name: str, rows: slice | None = None, cols: slice | None = None) -> torch.Tensor:
        part = self._part(name)
        shape = part.get_shape()
        wanted = tuple(slice(*bounds(want, length, name)) for want, length in zip((rows, cols), shape, strict=False))
        try:
            found: torch.Tensor = part[wanted]
        except SafetensorError as error:
            raise WeightsError(f"cannot read {name!r} from {self._root}: {error}. Download the model again.") from None
        return found

    def raw(self, name: str) -> RawTensor | None:
        self._part(name)
        return None

    def fingerprint(self) -> str:
        files = [(self._root / shard, _header_bytes(self._root / shard)) for shard in self._shards]
        config = self._root / "config.json"
        return fingerprint_files([(config, config.stat().st_size), *files])

    def close(self) -> None:
        self._handles.clear()

    def _locate(self) -> dict[str, tuple[str, str]]:
        """Canonical name -> (shard, name in the shard), for all tensors of the language model."""
        places: dict[str, tuple[str, str]] = {}
        for shard, promised in self._shards.items():
            present = list(self._handles[shard].keys())
            missing = promised - set(present)
            if missing:
                raise WeightsError(f"{self._root}: {shard} lacks {min(missing)!r}, which the index promises; download it again")
            places |= {canonical: (shard, name) for name in present if (canonical := _canonical(name)) is not None}
        for shard, name in places.values():
            check_dtype(self._handles[shard].get_slice(name), name)
        return places

    def _part(self, name: str) -> Any:
        place = self._places.get(name)
        if place is None:
            raise WeightsError(f"{self._root} has no tensor {name!r}; the model is incomplete: download it again")
        shard, stored_name = place
        return self._handles[shard].get_slice(stored_name)


def _canonical(name: str) -> str | None:
    for prefix, replacement in _PREFIXES.items():
        if name.startswith(prefix):
            return replacement + name.removeprefix(prefix)
    if name.startswith(_BARE):
        return "model." + name
    return name if name.startswith(("model.layers.", "model.embed_tokens.", "model.norm.", "lm_head.", "score.")) else None


def _find_shards(folder: Path) -> dict[str, set[str]]:
    """File name -> the tensors that it must hold (none are promised without an index)."""
    if (folder / SINGLE_FILE).is_file():
        return {SINGLE_FILE: set()}
    if not (folder / INDEX_FILE).is_file():
        hint = "convert its .bin files to safetensors" if list(folder.glob("*.bin")) else "download it again"
        raise WeightsError(f"{folder} holds neither {SINGLE_FILE} nor {INDEX_FILE}; {hint}")
    weight_map = read_json(folder / INDEX_FILE).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise WeightsError(f"{folder / INDEX_FILE} has no 'weight_map'; download it again")
    shards: dict[str, set[str]] = {}
    for name, shard in weight_map.items():
        if not isinstance(shard, str) or Path(shard).name != shard or not shard.endswith(".safetensors"):
            raise WeightsError(f"{folder / INDEX_FILE} places {name!r} in {shard!r:.80}, which is no file of this folder")
        shards.setdefault(shard, set()).add(name)
    missing = [shard for shard in sorted(shards) if not (folder / shard).is_file()]
    if missing:
        raise WeightsError(f"{folder} lacks {len(missing)} of {len(shards)} shards: {', '.join(missing[:5])}; download them")
    return shards


def open_shard(path: Path) -> Any:
    """The safetensors file at `path`, read lazily; raises WeightsError when it is none."""
    try:
        return safe_open(path, framework="pt")
    except (SafetensorError, OSError) as error:
        raise WeightsError(f"{path} is not a usable safetensors file ({error}); download it again") from None


def _header_bytes(path: Path) -> int:
    with path.open("rb") as file:
        return 8 + int.from_bytes(file.read(8), "little")


def check_dtype(part: Any, name: str) -> None:
    """Raise WeightsError unless `part`, called `name`, is stored in a type that can be read."""
    if part.get_dtype() not in ELEMENT_BYTES:
        raise WeightsError(f"the tensor {name!r} is stored as {part.get_dtype()}; supported: {', '.join(ELEMENT_BYTES)}")
