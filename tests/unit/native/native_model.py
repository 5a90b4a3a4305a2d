"""A small random model for the native engine, and a worker turned by hand: requests in, what was heard out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from sapwood.core.model_config import LayerKind, ModelConfig, RopeConfig
from sapwood.core.plan import Engine, EngineLimits
from sapwood.core.sampling import LogprobOptions, SamplingParams, TokenLogprobs
from sapwood.engine.native_lifecycle import NativeTypes, create_native_engine
from sapwood.engine.native_runner import NativeEngine
from sapwood.messages.types import StepStats, Submit, ToWorker, pack_ids
from sapwood.scheduler import Scheduler, SchedulerOptions
from sapwood.weights.dummy import DummyCheckpoint
from sapwood.worker.core import WorkerCore
from sapwood.worker.transfers import Transfers

VOCAB_SIZE, MAX_LEN, PAGE_SIZE, NUM_SLOTS, NUM_PAGES, EOS = 2500, 256, 16, 32, 400, 2
F16 = NativeTypes()
LIMITS = EngineLimits(NUM_SLOTS, MAX_LEN, NUM_PAGES, PAGE_SIZE, VOCAB_SIZE, (EOS,))
ROPE = RopeConfig("default", 100.0)
CONFIG = ModelConfig(
    architecture="llama",
    vocab_size=VOCAB_SIZE,
    hidden_size=64,
    intermediate_size=96,
    num_heads=4,
    num_kv_heads=2,
    head_dim=16,
    layers=(LayerKind(0, ROPE), LayerKind(50, ROPE)),
    max_position=MAX_LEN,
    norm_eps=1e-6,
    activation="silu",
    tie_embeddings=False,
    qkv_bias=True,
    output_bias=False,
    mlp_bias=False,
    qk_norm=False,
    post_norms=False,
    norm_plus_one=False,
    embedding_scale=1.0,
    attention_scale=0.25,
    attention_softcap=0.0,
    logit_softcap=12.0,
    eos_token_ids=(EOS,),
    bos_token_id=1,
    torch_dtype="float32",
)


class LoudCheckpoint(DummyCheckpoint):
    """Dummy weights large enough for logits that differ."""

    def tensor(self, name: str, rows: slice | None = None, cols: slice | None = None) -> torch.Tensor:
        tensor = super().tensor(name, rows, cols)
        return tensor if "norm" in name else tensor * 10


def make_native(threads: int = 2, limits: EngineLimits = LIMITS, max_rows: int = 4096, types: NativeTypes = F16) -> NativeEngine:
    checkpoint = LoudCheckpoint(CONFIG)
    return create_native_engine(checkpoint, limits, max_rows=max_rows, types=types, threads=threads)


@dataclass
class Heard:
    """What came back for one request."""

    token_ids: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    prompt_logprobs: list[TokenLogprobs] = field(default_factory=list)
    num_cached: int = 0
    num_retractions: int = 0

    @property
    def content(self) -> tuple[list[int], list[TokenLogprobs], list[TokenLogprobs]]:
        """All that must not depend on circumstances."""
        return self.token_ids, self.logprobs, self.prompt_logprobs


def ask(number: int, token_ids: Sequence[int], params: SamplingParams, logprobs: LogprobOptions) -> Submit:
    return Submit(number, number, 0, pack_ids(token_ids), params, logprobs)


class Hand:
    """A worker on `engine` with a fresh scheduler (and so an empty cache)."""

    def __init__(self, engine: Engine, *, overlap: bool = True, transfers: Transfers | None = None, **options: object) -> None:
        scheduler = Scheduler(engine.limits, SchedulerOptions(**options))  # type: ignore[arg-type]
        self._core = WorkerCore(scheduler, engine, overlap, transfers=transfers)

    def stats(self) -> StepStats:
        return self._core.scheduler.stats()

    def leave(self, save_s: float = 30.0) -> None:
        """Drain, let go of engine and storage."""
        self._core.drain([], save_s)
        self._core.close()

    def run(self, requests: Sequence[Submit]) -> dict[int, Heard]:
        """All requests at once, until all have ended."""
        heard = {request.number: Heard() for request in requests}
        messages: list[ToWorker] = list(requests)
        for _ in range(10_000):
            for event in self._core.step(messages).events:
                one = heard[event.number]
                one.token_ids += event.token_ids
                one.logprobs += event.logprobs or []
                one.prompt_logprobs += event.prompt_logprobs or []
                one.num_cached = max(one.num_cached, event.num_cached)
                one.num_retractions = max(one.num_retractions, event.num_retractions)
                assert event.finish is None or event.finish.kind in ("stop", "length"), event.finish
            messages = []
            if not self._core.has_work:
                return heard
        raise AssertionError("the requests did not end")
