"""From resolved options and a path to a scheduler and an engine that are ready to run.

Composes what it builds; decides only how the parts' options follow from one another. Invariant: every rank builds from the same
plan of memory (they agree on the smallest amount that any of them sees), so all schedulers decide alike.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import torch

from sapwood.config.sections import EngineSection, ModelOptions, SchedulerSection
from sapwood.core.plan import Engine, RowRun, SlotStart, StepPlan, TableWrite, TieredEngine, as_ids, no_copies
from sapwood.core.sampling import LogprobOptions, SamplingParams
from sapwood.device import Device, create_device
from sapwood.distributed.group import Group
from sapwood.engine.encoder import EncoderEngine
from sapwood.engine.memory import Footprint, MemoryFacts, MemoryOptions, MemoryPlan, format_table, plan_memory
from sapwood.scheduler.options import scheduler_options
from sapwood.scheduler.scheduler import Scheduler
from sapwood.weights.checkpoint import Checkpoint, check_same_model, open_checkpoint
from sapwood.weights.encoder import check_same_encoder, is_encoder, read_encoder_config
from sapwood.worker.backends import Backend, choose_backend, model_identity
from sapwood.worker.built import BuiltWorker, engine_info, profile_folder
from sapwood.worker.grammar_setup import constrain
from sapwood.worker.grammars import NoGrammars
from sapwood.worker.null_build import build_null
from sapwood.worker.overhaul import ChangeableEngine, Recipe
from sapwood.worker.pooled import build_encoder, pooled_decoder, warm_up_encoder
from sapwood.worker.step_trace import StepTrace
from sapwood.worker.tiers import fingerprint, open_transfers
from sapwood.worker.transfers import NoTransfers

ProgressCallback = Callable[[str, int, int], None]
WARM_UP_TOKENS = (16, 1)

logger = logging.getLogger(__name__)


def build_worker(
    model: ModelOptions,
    engine: EngineSection,
    scheduler: SchedulerSection,
    path: str,
    group: Group,
    progress: ProgressCallback = lambda task, done, total: None,
) -> BuiltWorker:
    """Load the model at `path` ("null" for the fake one) and put a scheduler on top; raises ConfigError and WeightsError."""
    if model.is_null:
        return build_null(model, engine, scheduler, group.rank)
    if is_encoder(Path(path)):
        return _build_encoder(model, engine, scheduler, Path(path), group, progress)
    checkpoint = open_checkpoint(Path(path), model.load_format, model.random_seed)
    try:
        device = create_device(engine.device, group.rank)
        pooled = pooled_decoder(model, checkpoint)
        backend, reason = choose_backend(engine, device, group, scheduler.max_prefill_tokens, pooled)
        plan = plan_rank(checkpoint, backend.footprint(checkpoint), (model, engine, scheduler), device, group)
        if group.rank == 0:
            logger.info("kernels %s (%s)\n%s", backend.name, reason, format_table(plan))
        first = backend.build(checkpoint, plan, progress)
        built = ChangeableEngine(first, _recipe(model, engine, backend, plan, checkpoint), StepTrace(profile_folder()))
        identity = fingerprint(model_identity(checkpoint), backend.arithmetic)
    finally:
        checkpoint.close()
    warm_up(built, progress)
    info = engine_info(built.limits) | {
        "kernel_backend": backend.name,
        "memory": [[row.name, row.value, row.reason] for row in plan.table()],
    }
    transfers = open_transfers(engine.cache, built, identity)
    options = scheduler_options(scheduler, plan.chunked_prefill_size, engine.cache)
    if pooled is not None:
        info, options = info | pooled.info, pooled.adjust(options)
    constrained = constrain(built, engine.grammar, model.tokenizer_path or path, group.rank)
    scheduling = Scheduler(built.limits, options)
    return BuiltWorker(scheduling, constrained.engine, built, options, info, transfers, constrained.grammars)


def _recipe(model: ModelOptions, engine: EngineSection, backend: Backend, plan: MemoryPlan, checkpoint: Checkpoint) -> Recipe:
    """How the engine is built again, with the first one's division of memory; other weights must have the first ones' shapes."""
    config, path = checkpoint.config, str(checkpoint.file or checkpoint.folder)
    obstacle = ""
    if engine.tp_size > 1:
        obstacle = "weights and memory cannot be changed on several ranks yet; leave --tp-size out"
    if engine.cache.host_bytes != 0:
        obstacle = "weights and memory cannot be changed with --enable-hierarchical-cache yet; leave it out"

    def check(path: str) -> None:
        opened = open_checkpoint(Path(path), model.load_format, model.random_seed)
        opened.close()
        check_same_model(config, opened.config, path)

    def build(path: str) -> TieredEngine:
        opened = open_checkpoint(Path(path), model.load_format, model.random_seed)
        try:
            built = backend.build(opened, plan, lambda task, done, total: None)
        finally:
            opened.close()
        warm_up(built, lambda task, done, total: None)
        return built

    return Recipe(path, check, build, obstacle)


def plan_rank(
    checkpoint: Checkpoint,
    footprint: Footprint,
    sections: tuple[ModelOptions, EngineSection, SchedulerSection],
    device: Device,
    group: Group,
) -> MemoryPlan:
    """The division of memory that all ranks agree on."""
    model, engine, scheduler = sections
    total, available = _smallest(group, device.total_memory_bytes(), device.available_memory_bytes())
    facts = MemoryFacts(device.kind, total, available, group.size if device.kind == "cpu" else 1)
    options = MemoryOptions(
        page_size=engine.page_size,
        context_length=model.context_length,
        max_running_requests=engine.max_running_requests,
        chunked_prefill_size=scheduler.chunked_prefill_size,
        mem_fraction_static=engine.mem_fraction_static,
        kv_cache_bytes=engine.kv_cache_bytes,
        max_total_tokens=engine.max_total_tokens,
        one_pool_because=_one_pool_because(engine),
        window_ratio=engine.swa_full_tokens_ratio,
    )
    return plan_memory(checkpoint.config, footprint, facts, options, group.size)


def _one_pool_because(engine: EngineSection) -> str:
    """Why layers with a window shall not have pages of their own, if there is a reason."""
    if engine.cache.host_bytes != 0:
        return "--enable-hierarchical-cache moves pages of all layers together"
    return "" if engine.hybrid_swa_memory else "--disable-hybrid-swa-memory"


def warm_up(engine: Engine, progress: ProgressCallback) -> None:
    """Run small steps, so that the first request does not pay for first-time work. They leave nothing that matters behind:
    every later request writes its slot and its pages before they are read."""
    longest = min(engine.limits.max_len - 1, engine.limits.longest_kv)
    for step, count in enumerate(WARM_UP_TOKENS):
        count = min(count, longest)
        start = SlotStart(0, as_ids([0] * count), count, SamplingParams(temperature=0.0, seed=0), LogprobOptions(), 0)
        kinds = (False, True) if engine.limits.window else (False,)
        writes = tuple(TableWrite(0, 0, np.arange(count, dtype=np.int32), is_window) for is_window in kinds)
        engine.launch(StepPlan(step, (start,), writes, no_copies(), (RowRun(0, 0, count, True),))).wait()
        progress("warm up", step + 1, len(WARM_UP_TOKENS))


def _smallest(group: Group, *values: int) -> list[int]:
    """The least of every rank's values, one by one."""
    gathered = group.all_gather(torch.tensor([values], dtype=torch.int64), dim=0)
    least: list[int] = gathered.min(dim=0).values.tolist()
    return least


def _build_encoder(
    model: ModelOptions,
    engine: EngineSection,
    scheduler: SchedulerSection,
    path: Path,
    group: Group,
    progress: ProgressCallback,
) -> BuiltWorker:
    device = create_device(engine.device, group.rank)
    built = build_encoder(model, engine, scheduler, path, group, device)
    warm_up_encoder(built.engine, progress)
    info = engine_info(built.engine.limits) | built.pooled.info | {"kernel_backend": "reference"}
    options = built.options(scheduler_options(scheduler, built.engine.limits.max_len))

    def rebuild(path: str) -> EncoderEngine:
        return build_encoder(model, engine, scheduler, Path(path), group, device).engine

    recipe = Recipe(str(path), partial(check_same_encoder, read_encoder_config(path)), rebuild)
    changeable = ChangeableEngine(built.engine, recipe, StepTrace(profile_folder()))
    scheduling = Scheduler(built.engine.limits, options)
    return BuiltWorker(scheduling, changeable, changeable, options, info, NoTransfers(), NoGrammars())
