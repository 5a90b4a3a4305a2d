"""Building a worker whose requests want vectors: an encoder, or a decoder that is read for its last hidden rows.

Composes what the engine provides; decides pooling, and which of the scheduler's options follow from it. Invariant: a prompt that
must be seen whole is never cut, and what pooling has to see is never taken from the prefix cache.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from sapwood.config.sections import EngineSection, ModelOptions, SchedulerSection
from sapwood.core.plan import EngineLimits, RowRun, SlotStart, StepPlan, as_ids, no_copies
from sapwood.core.pooling import Pooling, PoolingKind, Task
from sapwood.core.sampling import LogprobOptions, SamplingParams
from sapwood.core.units import align_up
from sapwood.device import Device
from sapwood.distributed.group import Group
from sapwood.engine.encoder import EncoderEngine
from sapwood.engine.lifecycle import resolve_encoder_dtype
from sapwood.engine.pooler import HiddenPooler
from sapwood.errors import ConfigError
from sapwood.models import Decoder
from sapwood.models.encoder import Encoder
from sapwood.scheduler.options import SchedulerOptions
from sapwood.weights.checkpoint import Checkpoint
from sapwood.weights.encoder import open_encoder, read_pooling

ENCODER_STEP_TOKENS = {"cpu": 1024, "cuda": 16384}
ENCODER_SLOTS = {"cpu": 256, "cuda": 1024}

ProgressCallback = Callable[[str, int, int], None]


@dataclass(frozen=True, slots=True)
class PooledModel:
    """What a model's vectors are: of `task`, made by `pooling`, with `size` numbers (one for each of `labels`, if there are)."""

    task: Task
    pooling: PoolingKind
    size: int
    labels: tuple[str, ...] = ()

    @property
    def info(self) -> dict[str, Any]:
        """What the server has to know."""
        return {"task": self.task.value, "pooling": self.pooling.value, "vector_size": self.size, "labels": list(self.labels)}

    def adjust(self, options: SchedulerOptions) -> SchedulerOptions:
        """The scheduler's options for a decoder: the mean needs every row computed, so that nothing may come from a cache."""
        return dataclasses.replace(options, cache="chunk") if self.pooling is PoolingKind.MEAN else options


def pooled_decoder(model: ModelOptions, checkpoint: Checkpoint) -> PooledModel | None:
    """How a decoder is read for vectors; None when it is served for its text."""
    config = checkpoint.config
    if not (model.is_embedding or config.labels):
        return None
    if config.labels:
        return PooledModel(Task.CLASSIFY, PoolingKind.LAST, len(config.labels), config.labels)
    if model.pooling == PoolingKind.CLS:
        raise ConfigError("--pooling cls: the first row of this model has seen only itself; take last or mean", param="pooling")
    written = read_pooling(checkpoint.folder) if checkpoint.folder and model.pooling == "auto" else None
    kind = (written or PoolingKind.LAST) if model.pooling == "auto" else PoolingKind(model.pooling)
    return PooledModel(Task.EMBED, kind, config.hidden_size)


def decoder_pooler(pooled: PooledModel, checkpoint: Checkpoint, model: Decoder, device: Device) -> HiddenPooler:
    """Reads vectors from the hidden rows of `model`, with the checkpoint's classification head if it has one."""
    head: Tensor | None = None
    if pooled.labels:
        head = checkpoint.tensor("score.weight").to(device.torch_device, torch.float32)
        if head.shape != (len(pooled.labels), model.config.hidden_size):
            raise ConfigError(f"score.weight has the shape {tuple(head.shape)}, which does not fit the configuration's labels")
    return HiddenPooler(model.final, pooled.pooling, head)


@dataclass(frozen=True, slots=True)
class BuiltEncoder:
    """An encoder that can run."""

    engine: EncoderEngine
    pooled: PooledModel
    options: Callable[[SchedulerOptions], SchedulerOptions]


def build_encoder(
    model: ModelOptions, engine: EngineSection, scheduler: SchedulerSection, path: Path, group: Group, device: Device
) -> BuiltEncoder:
    """Load the encoder at `path`; raises ConfigError and WeightsError."""
    if group.size > 1:
        raise ConfigError("encoders run on one rank; leave --tp-size out", param="tp_size")
    if engine.kernel_backend == "native":
        raise ConfigError("encoders have no native kernels; leave --kernel-backend out", param="kernel_backend")
    torch.set_num_threads(engine.cpu_threads)
    checkpoint = open_encoder(path)
    config = checkpoint.config
    pooling = config.pooling if model.pooling == "auto" else PoolingKind(model.pooling)
    pooled = PooledModel(Task.EMBED, pooling, config.hidden_size)
    if config.labels:
        pooled = PooledModel(Task.CLASSIFY, PoolingKind.CLS, len(config.labels), config.labels)
    longest = min(model.context_length or config.max_position, config.max_position)
    step_tokens = min(scheduler.chunked_prefill_size or ENCODER_STEP_TOKENS[device.kind], scheduler.max_prefill_tokens)
    if scheduler.chunked_prefill_size == -1:
        step_tokens = scheduler.max_prefill_tokens
    limits = _limits(engine, longest, config.vocab_size, config.eos_token_ids, device)
    loaded = Encoder(checkpoint, device.torch_device, resolve_encoder_dtype(engine.dtype, device.kind))
    built = EncoderEngine(limits, loaded, pooling, device.open_stream("sapwood-compute", False))

    def adjust(options: SchedulerOptions) -> SchedulerOptions:
        return dataclasses.replace(
            options, cache="chunk", whole_prompts=True, step_token_budget=step_tokens, target_itl_s=None, kv_events=False
        )

    return BuiltEncoder(built, pooled, adjust)


def warm_up_encoder(engine: EncoderEngine, progress: ProgressCallback) -> None:
    """One small step, so that the first request does not pay for first-time work."""
    count = min(16, engine.limits.max_len)
    params = SamplingParams(max_new_tokens=0, seed=0)
    start = SlotStart(0, as_ids([0] * count), count, params, LogprobOptions(), 0, Pooling())
    engine.launch(StepPlan(0, (start,), (), no_copies(), (RowRun(0, 0, count, False),))).wait()
    progress("warm up", 1, 1)


def _limits(engine: EngineSection, longest: int, vocab_size: int, eos: tuple[int, ...], device: Device) -> EngineLimits:
    """There is no KV cache: pages are numbers, and there are enough for every slot."""
    slots = engine.max_running_requests or ENCODER_SLOTS[device.kind]
    pages_each = align_up(longest, engine.page_size) // engine.page_size
    return EngineLimits(slots, longest, slots * pages_each, engine.page_size, vocab_size, eos)
