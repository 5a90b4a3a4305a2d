"""Which engine computes: the native one on a CPU where it can, the torch reference everywhere else.

Owns the choice and its reason; does not know requests. Invariant: what was asked for explicitly is what runs, or a ConfigError
says why it cannot; an automatic fallback says why once.
"""

from __future__ import annotations

import importlib
import math
from dataclasses import dataclass
from types import ModuleType
from typing import Any, Protocol

import numpy as np
import torch

from sapwood.config.sections import EngineSection
from sapwood.core.model_config import ModelConfig
from sapwood.core.plan import EngineLimits, TieredEngine
from sapwood.core.units import div_ceil
from sapwood.device import Device
from sapwood.distributed.group import Group
from sapwood.engine.lifecycle import EngineOptions, build_engine, load_model, resolve_dtype
from sapwood.engine.memory import Footprint, MemoryPlan
from sapwood.errors import ConfigError
from sapwood.observability.progress import ProgressCallback
from sapwood.weights.catalog import cache_folder
from sapwood.weights.checkpoint import Checkpoint
from sapwood.weights.dummy import DummyCheckpoint
from sapwood.weights.shapes import EDGE_MATRICES
from sapwood.weights.slicing import RawTensor
from sapwood.worker.pooled import PooledModel, decoder_pooler
from sapwood.worker.tiers import count_host_pages

NATIVE_PAGE = 16
"""Tokens in one page of the native KV layout; the scheduler's pages must be made of whole ones."""
NATIVE_KV = {"auto": "f16", "float16": "f16", "float32": "f32", "int8": "i8"}
NATIVE_KV_BYTES = {"f16": 2, "f32": 4, "i8": 1}
NATIVE_SCALE_DIMS = {"i8": 32}


class Backend(Protocol):
    """A kind of engine, with the options that it was chosen for."""

    @property
    def name(self) -> str: ...

    @property
    def arithmetic(self) -> str:
        """Names whatever decides, beside weights and tokens, which bytes of KV come out."""
        ...

    def footprint(self, checkpoint: Checkpoint) -> Footprint:
        """What the model will take on one rank."""
        ...

    def build(self, checkpoint: Checkpoint, plan: MemoryPlan, progress: ProgressCallback) -> TieredEngine:
        """The engine, loaded; raises WeightsError for weights that this backend cannot hold."""
        ...


@dataclass(frozen=True, slots=True)
class TorchBackend:
    """The reference: torch on any device, one of several ranks perhaps."""

    section: EngineSection
    device: Device
    group: Group
    pooled: PooledModel | None = None
    name: str = "reference"

    @property
    def arithmetic(self) -> str:
        """The library's version, the machine and the types."""
        kind, types = self.device.kind, (self.section.dtype, self.section.kv_cache_dtype)
        machine = torch.cuda.get_device_name() if kind == "cuda" else torch.backends.cpu.get_cpu_capability()
        return f"torch {torch.__version__} on {kind} {machine} {types}"

    def footprint(self, checkpoint: Checkpoint) -> Footprint:
        config, kind = checkpoint.config, self.device.kind
        element_bytes = resolve_dtype(self.section.dtype, config, kind).itemsize
        elements = sum(int(np.prod(checkpoint.shape(name))) for name in checkpoint.names())
        kv_bytes = resolve_dtype(self.section.kv_cache_dtype, config, kind).itemsize
        return Footprint(elements * element_bytes // self.group.size, element_bytes, kv_bytes)

    def build(self, checkpoint: Checkpoint, plan: MemoryPlan, progress: ProgressCallback) -> TieredEngine:
        section = self.section
        torch.set_num_threads(section.cpu_threads)
        options = EngineOptions(
            num_slots=plan.max_running_requests,
            max_len=plan.context_length,
            num_pages=plan.num_pages,
            page_size=plan.page_size,
            dtype=section.dtype,
            kv_dtype=section.kv_cache_dtype,
            device=section.device,
            device_index=self.group.rank,
            num_host_pages=count_host_pages(section.cache, plan.num_pages, plan.kv_bytes_per_token * plan.page_size),
            window=plan.window,
            num_window_pages=plan.num_window_pages,
        )
        model = load_model(options, CountedCheckpoint(checkpoint, progress, set()), self.group, self.device)
        pooler = decoder_pooler(self.pooled, checkpoint, model, self.device) if self.pooled else None
        return build_engine(options, model, self.group, self.device, pooler)


@dataclass(frozen=True, slots=True)
class NativeBackend:
    """The native engine of one CPU process: weights stay as the file stores them."""

    section: EngineSection
    module: ModuleType
    max_step_tokens: int
    name: str = "native"

    @property
    def arithmetic(self) -> str:
        """The kernels, how weights are rounded at load and activations in products, and the type of the pages."""
        section = self.section
        types = f"{section.quantization} {NATIVE_KV[section.kv_cache_dtype]} {section.activation_bits}"
        return f"native {self.module.arithmetic()} {types}"

    def footprint(self, checkpoint: Checkpoint) -> Footprint:
        """Raises ConfigError where weights that are quantised already shall be quantised."""
        if self.section.quantization != "none" and checkpoint.file is not None:
            why = f"{checkpoint.file.name} is a GGUF file, which stays as it is quantised"
            raise ConfigError(f"--quantization {self.section.quantization}: {why}; leave it out", param="quantization")
        kv_type = NATIVE_KV[self.section.kv_cache_dtype]
        return Footprint(self._weight_bytes(checkpoint), 4, NATIVE_KV_BYTES[kv_type], NATIVE_SCALE_DIMS.get(kv_type, 0))

    def _weight_bytes(self, checkpoint: Checkpoint) -> int:
        if self.section.quantization == "none":
            return checkpoint.nbytes
        return sum(_quantised_bytes(name, checkpoint.shape(name), self.section.quantization) for name in checkpoint.names())

    def build(self, checkpoint: Checkpoint, plan: MemoryPlan, progress: ProgressCallback) -> TieredEngine:
        section = self.section
        limits = EngineLimits(
            num_slots=plan.max_running_requests,
            max_len=plan.context_length,
            num_pages=plan.num_pages,
            page_size=plan.page_size,
            vocab_size=checkpoint.config.vocab_size,
            eos_token_ids=checkpoint.config.eos_token_ids,
            num_host_pages=count_host_pages(section.cache, plan.num_pages, plan.kv_bytes_per_token * plan.page_size),
            window=plan.window,
            num_window_pages=plan.num_window_pages,
        )
        chunk = self.max_step_tokens if plan.chunked_prefill_size == -1 else plan.chunked_prefill_size
        engine: TieredEngine = self.module.create_native_engine(
            CountedCheckpoint(checkpoint, progress, set()),
            limits,
            max_rows=max(chunk, plan.max_running_requests) + plan.max_running_requests + plan.page_size,
            threads=section.cpu_threads,
            types=self.module.NativeTypes(NATIVE_KV[section.kv_cache_dtype], section.quantization, section.activation_bits),
            cache=self._weight_cache(checkpoint),
        )
        return engine

    def _weight_cache(self, checkpoint: Checkpoint) -> Any:
        """A `native_cache.WeightCache`. Random weights are not worth keeping: the next start draws others."""
        if not self.section.weight_cache or isinstance(checkpoint, DummyCheckpoint):
            return self.module.NO_WEIGHT_CACHE
        return self.module.WeightFile(cache_folder() / "packed", f"{model_identity(checkpoint)} {self.section.quantization}")


@dataclass(frozen=True, slots=True)
class CountedCheckpoint:
    """A checkpoint that reports how many of its tensors were read."""

    checkpoint: Checkpoint
    progress: ProgressCallback
    seen: set[str]

    @property
    def config(self) -> ModelConfig:
        return self.checkpoint.config

    def shape(self, name: str) -> tuple[int, ...]:
        """The checkpoint's; asked for when a tensor is found packed already."""
        self._count(name)
        return self.checkpoint.shape(name)

    def tensor(self, name: str, rows: slice | None = None, cols: slice | None = None) -> torch.Tensor:
        """The checkpoint's tensor."""
        self._count(name)
        return self.checkpoint.tensor(name, rows, cols)

    def raw(self, name: str) -> RawTensor | None:
        """The checkpoint's stored blocks."""
        self._count(name)
        return self.checkpoint.raw(name)

    def _count(self, name: str) -> None:
        self.seen.add(name)
        self.progress("load weights", len(self.seen), len(self.checkpoint.names()))


def _quantised_bytes(name: str, shape: tuple[int, ...], quantization: str) -> int:
    """Blocks of 32 weights take 34 bytes at 8 bits, 20 at 4; vectors stay float32."""
    if len(shape) != 2:
        return 4 * math.prod(shape)
    block_bytes = 34 if quantization == "int8" or name in EDGE_MATRICES else 20
    return shape[0] * div_ceil(shape[1], 32) * block_bytes


def choose_backend(
    section: EngineSection, device: Device, group: Group, max_step_tokens: int, pooled: PooledModel | None = None
) -> tuple[Backend, str]:
    """The backend, and why it is this one; raises ConfigError when the one that was asked for cannot run."""
    reference = TorchBackend(section, device, group, pooled)
    needs, param = _native_only(section)
    if section.kernel_backend == "reference":
        if needs:
            raise ConfigError(f"{needs} needs native kernels; leave it or --kernel-backend reference out", param=param)
        return reference, "--kernel-backend"
    module = _native_module()
    obstacle = _obstacle(section, device, group, module)
    if pooled is not None:
        obstacle = "it gives tokens, not the vectors that this model is served for"
    if needs and (obstacle or module is None):
        raise ConfigError(f"{needs} needs native kernels, which cannot run: {obstacle}", param=param)
    if module is not None and not obstacle:
        _select_isa(module, section.cpu_isa)
        return NativeBackend(section, module, max_step_tokens), f"compiled; runs on {module._native.isa()}"
    if section.kernel_backend == "native":
        raise ConfigError(f"--kernel-backend native cannot run: {obstacle}", param="kernel_backend")
    return reference, f"not native: {obstacle}"


def _select_isa(module: ModuleType, name: str) -> None:
    """Which kernels this process runs from now on; raises ConfigError where the processor lacks them."""
    try:
        module._native.select_isa(name)
    except module._native.NativeError as error:
        raise ConfigError(f"--cpu-isa {name}: {error}", param="cpu_isa") from None


def _native_only(section: EngineSection) -> tuple[str, str]:
    """An option, as it was typed, that only native kernels know, and its name; two empty strings where there is none."""
    if section.quantization != "none":
        return f"--quantization {section.quantization}", "quantization"
    if section.kv_cache_dtype == "int8":
        return "--kv-cache-dtype int8", "kv_cache_dtype"
    if section.activation_bits != 8:
        return f"--activation-bits {section.activation_bits}", "activation_bits"
    return "", ""


def _obstacle(section: EngineSection, device: Device, group: Group, module: ModuleType | None) -> str:
    """Why the native engine cannot run, or nothing."""
    if device.kind != "cpu":
        return f"it computes on the CPU, not on {device.kind}"
    if group.size > 1:
        return "it has one rank; leave --tp-size out"
    if section.page_size % NATIVE_PAGE:
        return f"its pages hold {NATIVE_PAGE} tokens; take a --page-size that is a multiple"
    if section.dtype not in ("auto", "float32") or section.kv_cache_dtype not in NATIVE_KV:
        return "it computes in float32 with a KV cache of float16, float32 or int8; leave --dtype and --kv-cache-dtype out"
    return "" if module else "it was not built; install a C++ compiler and run scripts/install again"


def _native_module() -> ModuleType | None:
    try:
        return importlib.import_module("sapwood.engine.native_lifecycle")
    except ImportError:
        return None


def model_identity(checkpoint: Checkpoint) -> str:
    """The weights and the tokenizer: a digest of the content, and the time of the last change, which samples might miss."""
    files = [checkpoint.file] if checkpoint.file else sorted(checkpoint.folder.iterdir()) if checkpoint.folder else []
    stats = [(file.name, file.stat().st_size, file.stat().st_mtime_ns) for file in files if file.is_file()]
    return f"{checkpoint.fingerprint()} {stats}"
