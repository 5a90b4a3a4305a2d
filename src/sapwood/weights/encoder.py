"""Encoders of the BERT family in a Hugging Face folder: their configuration, and their tensors under common names.

Owns the names that BERT, RoBERTa and XLM-RoBERTa give to the same things, and what sentence-transformers writes beside them. Does
not know how they are computed. Invariant: a checkpoint that opens holds every tensor that its configuration asks for.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from sapwood.core.encoder_config import EncoderConfig
from sapwood.core.pooling import PoolingKind
from sapwood.errors import WeightsError
from sapwood.weights.fields import MAX_LAYERS, Fields
from sapwood.weights.fingerprint import fingerprint_files
from sapwood.weights.hf_config import read_json, read_labels
from sapwood.weights.safetensors import SINGLE_FILE, check_dtype, open_shard

ARCHITECTURES = {"bert": "bert", "roberta": "roberta", "xlm-roberta": "roberta"}
ACTIVATIONS = {"gelu": "gelu", "gelu_new": "gelu_tanh", "gelu_pytorch_tanh": "gelu_tanh", "relu": "relu"}
_LAYER_NAMES = {
    "attention.self.query": "query",
    "attention.self.key": "key",
    "attention.self.value": "value",
    "attention.output.dense": "output",
    "attention.output.LayerNorm": "attention_norm",
    "intermediate.dense": "up",
    "output.dense": "down",
    "output.LayerNorm": "mlp_norm",
}


def is_encoder(path: Path) -> bool:
    """Whether the folder at `path` holds a model of this family."""
    file = path / "config.json"
    return file.is_file() and read_json(file).get("model_type") in ARCHITECTURES


def read_encoder_config(folder: Path) -> EncoderConfig:
    """The configuration of the encoder in `folder`; raises WeightsError when it is missing, damaged or not supported."""
    fields = Fields(read_json(folder / "config.json"), str(folder / "config.json"))
    architecture = ARCHITECTURES.get(fields.text("model_type"))
    if architecture is None:
        raise WeightsError(f"{fields.source}: {fields.get('model_type')!r} is no encoder; supported: {', '.join(ARCHITECTURES)}")
    if fields.text("position_embedding_type", "absolute") != "absolute" or fields.flag("is_decoder", False):
        raise WeightsError(f"{fields.source}: only encoders with absolute positions are supported; choose another model")
    name = fields.text("hidden_act", "gelu")
    if name not in ACTIVATIONS:
        raise WeightsError(f"{fields.source}: the activation {name!r} is not supported; supported: {', '.join(ACTIVATIONS)}")
    is_roberta = architecture == "roberta"
    first = fields.get("pad_token_id", 1) + 1 if is_roberta else 0
    hidden_size, num_heads = fields.size("hidden_size", 768), fields.size("num_attention_heads", 12)
    if hidden_size % num_heads:
        raise WeightsError(f"{fields.source}: {num_heads} heads do not divide {hidden_size} evenly; download the model again")
    return EncoderConfig(
        architecture=architecture,
        vocab_size=fields.size("vocab_size"),
        hidden_size=hidden_size,
        intermediate_size=fields.size("intermediate_size", 3072),
        num_layers=fields.size("num_hidden_layers", 12, limit=MAX_LAYERS),
        num_heads=num_heads,
        max_position=min(fields.size("max_position_embeddings", 512) - first, _sentence_limit(folder)),
        first_position=first,
        num_segments=fields.size("type_vocab_size", 2),
        tells_texts_apart=not is_roberta and fields.size("type_vocab_size", 2) > 1,
        norm_eps=fields.positive("layer_norm_eps", 1e-12),
        activation=ACTIVATIONS[name],
        pooling=_pooling(folder),
        labels=read_labels(fields),
        head="dense" if is_roberta else "pooler",
        eos_token_ids=fields.token_ids("eos_token_id"),
    )


def read_pooling(folder: Path) -> PoolingKind | None:
    """What sentence-transformers wrote down about pooling in `folder`; None where it wrote nothing."""
    for path in sorted(folder.glob("*_Pooling/config.json")):
        modes = read_json(path)
        chosen = [kind for key, kind in _MODES.items() if modes.get(key)]
        others = [key for key, value in modes.items() if key.startswith("pooling_mode_") and value is True and key not in _MODES]
        if len(chosen) != 1 or others:
            raise WeightsError(f"{path}: exactly one of {', '.join(_MODES)} can be used; give --pooling and correct the file")
        return chosen[0]
    return None


_MODES = {
    "pooling_mode_mean_tokens": PoolingKind.MEAN,
    "pooling_mode_cls_token": PoolingKind.CLS,
    "pooling_mode_lasttoken": PoolingKind.LAST,
}


def _pooling(folder: Path) -> PoolingKind:
    return read_pooling(folder) or PoolingKind.MEAN


def _sentence_limit(folder: Path) -> int:
    """The longest prompt that the model was made for, where sentence-transformers says so."""
    path = folder / "sentence_bert_config.json"
    if not path.is_file():
        return 1 << 30
    return Fields(read_json(path), str(path)).size("max_seq_length", 1 << 30)


@dataclass(frozen=True, slots=True)
class EncoderCheckpoint:
    """An open encoder. Names: `words`, `positions`, `segments`, `norm`, `layers.3.query`, …, `pooler`, `classifier`, each with
    `.weight` and, where it has one, `.bias`."""

    config: EncoderConfig
    folder: Path
    handle: Any
    places: dict[str, str]

    def tensor(self, name: str) -> Tensor:
        """The tensor in its stored type, on the CPU; raises WeightsError if there is none."""
        place = self.places.get(name)
        if place is None:
            raise WeightsError(f"{self.folder} has no tensor {name!r}; the model is incomplete: download it again")
        found: Tensor = self.handle.get_tensor(place)
        return found

    def fingerprint(self) -> str:
        """A cheap identity of the content."""
        files = [self.folder / name for name in ("config.json", SINGLE_FILE)]
        return fingerprint_files([(file, file.stat().st_size if file.suffix == ".json" else 4096) for file in files])


def open_encoder(folder: Path) -> EncoderCheckpoint:
    """The encoder in `folder`; raises WeightsError when it is incomplete or not supported."""
    config = read_encoder_config(folder)
    file = folder / SINGLE_FILE
    if not file.is_file():
        hint = "convert its .bin file to safetensors" if list(folder.glob("*.bin")) else "download it again"
        raise WeightsError(f"{folder} has no {SINGLE_FILE}; {hint}")
    handle = open_shard(file)
    places = {}
    for stored in handle.keys():  # noqa: SIM118  (the handle is no mapping)
        name = _common_name(stored)
        if name is not None:
            check_dtype(handle.get_slice(stored), stored)
            places[name] = stored
    checkpoint = EncoderCheckpoint(config, folder, handle, places)
    for name, shape in _expected(config).items():
        if name not in places:
            raise WeightsError(f"{folder} lacks the tensor {name!r}; the model is incomplete: download it again")
        found = tuple(handle.get_slice(places[name]).get_shape())
        if found != shape:
            raise WeightsError(f"{folder}: {places[name]} has the shape {found}, but its configuration asks for {shape}")
    return checkpoint


def _common_name(stored: str) -> str | None:
    name = stored.removeprefix("bert.").removeprefix("roberta.").replace("LayerNorm.gamma", "LayerNorm.weight")
    name = name.replace("LayerNorm.beta", "LayerNorm.bias")
    base, _, kind = name.rpartition(".")
    if kind not in ("weight", "bias"):
        return None
    if base.startswith("encoder.layer."):
        index, _, part = base.removeprefix("encoder.layer.").partition(".")
        return f"layers.{index}.{_LAYER_NAMES[part]}.{kind}" if part in _LAYER_NAMES else None
    common = {
        "embeddings.word_embeddings": "words",
        "embeddings.position_embeddings": "positions",
        "embeddings.token_type_embeddings": "segments",
        "embeddings.LayerNorm": "norm",
        "pooler.dense": "pooler",
        "classifier.dense": "pooler",
        "classifier": "classifier",
        "classifier.out_proj": "classifier",
    }.get(base)
    return None if common is None else f"{common}.{kind}"


def _expected(config: EncoderConfig) -> dict[str, tuple[int, ...]]:
    hidden, inner = config.hidden_size, config.intermediate_size
    square = dict.fromkeys(("query", "key", "value", "output"), (hidden, hidden))
    linears = {f"layers.{i}.{name}": shape for i in range(config.num_layers) for name, shape in square.items()}
    for index in range(config.num_layers):
        linears |= {f"layers.{index}.up": (inner, hidden), f"layers.{index}.down": (hidden, inner)}
    if config.labels:
        linears |= {"pooler": (hidden, hidden), "classifier": (len(config.labels), hidden)}
    norms = ["norm", *(f"layers.{i}.{name}" for i in range(config.num_layers) for name in ("attention_norm", "mlp_norm"))]
    shapes: dict[str, tuple[int, ...]] = {
        "words.weight": (config.vocab_size, hidden),
        "segments.weight": (config.num_segments, hidden),
    }
    for name, shape in linears.items():
        shapes |= {f"{name}.weight": shape, f"{name}.bias": shape[:1]}
    for name in norms:
        shapes |= {f"{name}.weight": (hidden,), f"{name}.bias": (hidden,)}
    return shapes
