"""Builds a torch engine from a checkpoint: types, weights, KV store, sampler, stream.

Owns the choice of data types; does not decide how much memory the KV store takes (its caller says how many pages). Invariant:
an engine that is returned can run any plan within its limits.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from sapwood.core.model_config import ModelConfig
from sapwood.core.plan import EngineLimits
from sapwood.device import Device, create_device
from sapwood.distributed.group import Group
from sapwood.engine.pooler import Pooler
from sapwood.engine.runner import TorchEngine
from sapwood.engine.sampler import Sampler
from sapwood.errors import ConfigError
from sapwood.kernels.api import KERNEL_BACKENDS
from sapwood.kernels.reference import ReferenceKernels
from sapwood.kvcache.store import KVStore
from sapwood.layers.loader import TensorSource, WeightLoader
from sapwood.models import Decoder, load_decoder

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


@dataclass(frozen=True, slots=True)
class EngineOptions:
    """What an engine is built with. Data types are auto, float32, bfloat16 or float16; lengths count tokens.

    `num_pages` pages of `page_size` tokens make the KV store (and `num_window_pages` that of layers with a window, see
    `EngineLimits`); `device_index` is this rank's GPU. A synchronous engine finishes
    each step before `launch` returns.
    """

    num_slots: int
    max_len: int
    num_pages: int
    page_size: int
    dtype: str = "auto"
    kv_dtype: str = "auto"
    kernels: str = ReferenceKernels.name
    device: str = "auto"
    device_index: int = 0
    num_host_pages: int = 0
    window: int = 0
    num_window_pages: int = 0
    synchronous: bool = False


def resolve_dtype(name: str, config: ModelConfig, device_kind: str) -> torch.dtype:
    """The torch type called `name`; auto is float32 on a CPU and the checkpoint's own type elsewhere."""
    if name == "auto":
        name = "float32" if device_kind == "cpu" else config.torch_dtype
    try:
        return DTYPES[name]
    except KeyError:
        raise ConfigError(f"data type {name!r} is not supported; use one of auto, {', '.join(DTYPES)}", param="dtype") from None


def resolve_encoder_dtype(name: str, device_kind: str) -> torch.dtype:
    """The torch type for an encoder; auto is float32 on a CPU and float16 on a GPU."""
    auto = "float32" if device_kind == "cpu" else "float16"
    return DTYPES[auto if name == "auto" else name]


def create_engine(options: EngineOptions, checkpoint: TensorSource, group: Group) -> TorchEngine:
    """Load the model and build its engine; raises ConfigError or WeightsError when that cannot work."""
    device = create_device(options.device, options.device_index)
    return build_engine(options, load_model(options, checkpoint, group, device), group, device)


def load_model(options: EngineOptions, checkpoint: TensorSource, group: Group, device: Device) -> Decoder:
    """This rank's part of the model, on the device."""
    dtype = resolve_dtype(options.dtype, checkpoint.config, device.kind)
    kernels = KERNEL_BACKENDS.get(options.kernels)()
    return load_decoder(WeightLoader(checkpoint, kernels, group, device.torch_device, dtype), options.max_len)


def build_engine(
    options: EngineOptions, model: Decoder, group: Group, device: Device, pooler: Pooler | None = None
) -> TorchEngine:
    """An engine around a loaded model; the KV store is allocated here."""
    config = model.config
    limits = EngineLimits(
        num_slots=options.num_slots,
        max_len=options.max_len,
        num_pages=options.num_pages,
        page_size=options.page_size,
        vocab_size=config.vocab_size,
        eos_token_ids=config.eos_token_ids,
        num_host_pages=options.num_host_pages,
        window=options.window,
        num_window_pages=options.num_window_pages,
    )
    dtype = resolve_dtype(options.kv_dtype, config, device.kind)
    num_locations, num_window_locations = options.num_pages * options.page_size, options.num_window_pages * options.page_size
    store = KVStore(model.shapes, num_locations, dtype, device.torch_device, model.kernels, num_window_locations)
    sampler = Sampler(options.num_slots, config.vocab_size, config.eos_token_ids, device.torch_device)
    stream = device.open_stream("sapwood-compute", options.synchronous)
    engine = TorchEngine(limits, model, store, sampler, group, stream, pooler)
    if device.kind == "cuda":
        torch.cuda.synchronize(device.torch_device)  # tables and weights were filled on another stream than the engine's
    return engine
