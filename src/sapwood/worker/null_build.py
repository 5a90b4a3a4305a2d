"""A rank of the null model: no weights, no device, no torch.

Composes; decides only sizes.
"""

from __future__ import annotations

from sapwood.config.sections import EngineSection, ModelOptions, SchedulerSection
from sapwood.core.plan import EngineLimits
from sapwood.core.pooling import PoolingKind, Task
from sapwood.engine.null import NullEngine, NullOptions
from sapwood.engine.null_model import VECTOR_SIZE, null_limits
from sapwood.errors import InvalidRequest
from sapwood.scheduler.options import scheduler_options
from sapwood.scheduler.scheduler import Scheduler
from sapwood.worker.built import BuiltWorker, engine_info, profile_folder
from sapwood.worker.grammar_setup import constrain
from sapwood.worker.overhaul import ChangeableEngine, Recipe
from sapwood.worker.step_trace import StepTrace
from sapwood.worker.tiers import count_host_pages, fingerprint, open_transfers

NULL_CHUNK_TOKENS = 512
NULL_ROW_BYTES = 8


def build_null(model: ModelOptions, engine: EngineSection, scheduler: SchedulerSection, rank: int) -> BuiltWorker:
    """The null model with a scheduler on top."""
    usual, page = null_limits(), engine.page_size
    num_pages = max(1, (engine.max_total_tokens or usual.num_pages * usual.page_size) // page)
    limits = EngineLimits(
        num_slots=engine.max_running_requests or usual.num_slots,
        max_len=model.context_length or usual.max_len,
        num_pages=num_pages,
        page_size=page,
        vocab_size=usual.vocab_size,
        eos_token_ids=usual.eos_token_ids,
        num_host_pages=count_host_pages(engine.cache, num_pages, NULL_ROW_BYTES * page),
    )
    null = NullEngine(limits, NullOptions(step_time_s=engine.null_step_ms / 1000))
    options = scheduler_options(scheduler, NULL_CHUNK_TOKENS, engine.cache)
    transfers = open_transfers(engine.cache, null, fingerprint("null"))
    recipe = Recipe("null", _refuse_null, lambda path: NullEngine(limits, NullOptions(step_time_s=engine.null_step_ms / 1000)))
    changeable = ChangeableEngine(null, recipe, StepTrace(profile_folder()))
    info = engine_info(limits)
    if model.is_embedding:
        info |= {"task": Task.EMBED.value, "pooling": PoolingKind.LAST.value, "vector_size": VECTOR_SIZE, "labels": []}
    constrained = constrain(changeable, engine.grammar, model.tokenizer_path or model.model_path, rank)
    scheduling = Scheduler(limits, options)
    return BuiltWorker(scheduling, constrained.engine, changeable, options, info, transfers, constrained.grammars)


def _refuse_null(path: str) -> None:
    raise InvalidRequest("the null model has no weights to change")
