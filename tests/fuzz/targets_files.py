"""Fuzz targets: the files of models. A damaged one is refused with the package's own error, or it can be used; nothing else."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import seeds
from damage import SCALARS, altered, bounded, damaged
from fuzzing import fuzzed

from sapwood.errors import ConfigError, InvalidRequest, WeightsError
from sapwood.tokenizer.chat import ChatRenderer
from sapwood.tokenizer.load import load_tokenizer
from sapwood.tokenizer.tokenizer import Tokenizer
from sapwood.weights.checkpoint import open_checkpoint

TEXTS = ("", "abc abd 12  3", "naïve 한국 🙂", "<|im_start|>user\nab<|im_end|>")
MESSAGES = [{"role": "user", "content": "abc <|im_end|> def"}]


@contextlib.contextmanager
def folder_with(**files: bytes) -> Iterator[Path]:
    """A folder that holds these; `_` in a name stands for the dot before its ending."""
    with tempfile.TemporaryDirectory(prefix="fuzz-") as name:
        for file, content in files.items():
            stem, _, ending = file.rpartition("_")
            Path(name, f"{stem}.{ending}").write_bytes(content)
        yield Path(name)


def use_checkpoint(path: Path) -> None:
    """Open it and read everything."""
    with bounded(), contextlib.suppress(WeightsError):
        checkpoint = open_checkpoint(path)
        for name in checkpoint.names():
            assert tuple(checkpoint.tensor(name).shape) == checkpoint.shape(name)
            checkpoint.raw(name)
        assert checkpoint.nbytes >= 0 and checkpoint.fingerprint()
        checkpoint.close()


def use_tokenizer(path: Path) -> None:
    """Load it; what loads encodes and decodes, and its templates render or refuse."""
    with bounded(), contextlib.suppress(WeightsError):
        tokenizer = load_tokenizer(path)
        for text in TEXTS:
            ids = tokenizer.encode(text, add_special=True, parse_special=True)
            assert all(token_id >= 0 for token_id in ids)
            tokenizer.decode(ids)
            plain = tokenizer.encode(text, add_special=False, parse_special=False)
            assert not tokenizer.special_ids.intersection(plain)
        use_templates(tokenizer)


def use_templates(tokenizer: Tokenizer) -> None:
    """Compile and render what the model brought."""
    with contextlib.suppress(ConfigError, InvalidRequest):
        renderer = ChatRenderer(tokenizer)
        for name in tokenizer.chat_templates:
            tokenizer.encode_pieces(renderer.render(MESSAGES) if name == "default" else [], add_special=False)


@fuzzed(damaged([seeds.gguf_file("gpt2"), seeds.gguf_file("llama")], reach=12_000))
def gguf(content: bytes) -> None:
    """A GGUF file as weights and as a tokenizer."""
    with folder_with(model_gguf=content) as folder:
        use_checkpoint(folder / "model.gguf")
        use_tokenizer(folder / "model.gguf")


@fuzzed(
    weights=st.just(seeds.safetensors_file()) | damaged([seeds.safetensors_file()], reach=1500),
    config=st.just(seeds.CONFIG) | altered([seeds.CONFIG]),
    index=st.none() | altered([{"weight_map": dict.fromkeys(seeds.SHAPES, "model-1.safetensors")}]),
)
def safetensors(weights: bytes, config: Any, index: Any) -> None:
    """A folder of safetensors, its configuration, and its index."""
    files = {"model_safetensors": weights} if index is None else {"model-1_safetensors": weights}
    if index is not None:
        files["model.safetensors.index_json"] = seeds.as_json(index)
    with folder_with(config_json=seeds.as_json(config), **files) as folder:
        use_checkpoint(folder)


@fuzzed(
    content=altered([seeds.tokenizer_json(), seeds.tokenizer_json("Metaspace")]).map(seeds.as_json)
    | damaged([seeds.as_json(seeds.tokenizer_json())]),
    config=st.just(seeds.TOKENIZER_CONFIG) | altered([seeds.TOKENIZER_CONFIG]),
    generation=st.none() | st.dictionaries(st.sampled_from(["eos_token_id", "bos_token_id"]), SCALARS),
)
def tokenizer(content: bytes, config: Any, generation: Any) -> None:
    """A folder's tokenizer.json and its neighbours."""
    files = {} if generation is None else {"generation_config_json": seeds.as_json(generation)}
    with folder_with(tokenizer_json=content, tokenizer_config_json=seeds.as_json(config), **files) as folder:
        use_tokenizer(folder)
