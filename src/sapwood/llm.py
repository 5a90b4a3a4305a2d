"""The engine in the calling process: `LLM` generates for lists of prompts, or streams, without a server.

Owns a worker, a tokenizer and a desk of unfinished requests, and turns prompts into ids for them; does not know how steps are
made. Invariant: every prompt of a call is checked before the first one runs, and no call leaves a request behind, whether it
returned, failed, was interrupted or cancelled.
"""

from __future__ import annotations

import asyncio
import operator
import os
import weakref
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any, cast

import msgspec
import numpy as np
from numpy.typing import NDArray

from sapwood.config.options import LLM_GROUPS, find
from sapwood.config.raw import RawOptions, from_environment, from_mapping
from sapwood.config.resolve import probe_host, resolve
from sapwood.config.sections import Config, ModelOptions
from sapwood.core.pooling import Pooling, Task
from sapwood.core.sampling import LogprobOptions, SamplingParams
from sapwood.detokenizer.detokenizer import Detokenizer
from sapwood.errors import ConfigError, InvalidRequest
from sapwood.grammar.api import GrammarOptions
from sapwood.grammar.check import check_constraint
from sapwood.observability.progress import Progress, ProgressCallback, reporting
from sapwood.offline import Call, Desk, GenerationResult
from sapwood.pump import OnUpdate, Pump, Ticket
from sapwood.scheduler.step_log import open_step_log
from sapwood.server.limits import ServingLimits, serving_limits
from sapwood.server.requests import PromptRequest
from sapwood.server.requests import resolve as resolve_request
from sapwood.server.scoring import Vector, check_dimensions, class_probabilities, label_scores, unit, unpack_vector
from sapwood.tokenizer.chat import ChatRenderer
from sapwood.tokenizer.load import open_chat, open_tokenizer
from sapwood.upkeep import Upkeep
from sapwood.weights import catalog
from sapwood.worker.build import build_worker
from sapwood.worker.core import WorkerCore
from sapwood.worker.followers import Followers

Prompt = str | Sequence[int]
Messages = Sequence[Mapping[str, Any]]
Params = SamplingParams | Sequence[SamplingParams] | None

DEFAULT_MAX_NEW_TOKENS = SamplingParams().max_new_tokens
PORTIONS = 2
"""Samples handed to the worker at a time, as a multiple of those that can run: enough to choose from, little to hold."""


class LLM:
    """A model ready to generate. A context manager; may be used from several threads and tasks, which then share batches.

    `model` and `options` are those of docs/reference/options.md (groups model, engine, memory, scheduling), under any of their
    names; SAPWOOD_… variables count too. `num_slots` requests can run at once. `progress` shows bars while loading (True) or is
    called with (task, done, total). `upkeep` changes weights and memory while it lives. Raises ConfigError and WeightsError.
    """

    def __init__(self, model: str | None = None, *, progress: Progress = False, **options: Any) -> None:
        self.config = configure(model, options)
        with reporting(progress) as report:
            path = "null" if self.config.model.is_null else str(catalog.resolve(self.config.model.model_path, report))
            self._prompts = PromptReader(self.config.model, path)
            worker, followers, info = open_worker(self.config, path, report)
        self._limits = serving_limits(info, max_open_requests=0)
        self.num_slots: int = info["max_running_requests"]
        grammar = self.config.engine.grammar
        self._grammar_options = GrammarOptions(grammar.any_whitespace, self._prompts.tokenizer.control_ids, grammar.limits)
        self._portion = PORTIONS * self.num_slots
        self._desk = Desk(worker, followers, Detokenizer(self._prompts.tokenizer), self.config.model.random_seed)
        self._pump = Pump(self._desk)
        self.upkeep = Upkeep(self._desk)
        self._close = weakref.finalize(self, self._desk.close)

    def __enter__(self) -> LLM:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    # ------------------------------------------------------------------------------------------------ whole results
    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        params: Params = None,
        *,
        logprobs: LogprobOptions | None = None,
        progress: Progress = False,
    ) -> list[GenerationResult]:
        """Complete every prompt (text, or token ids); results in the order of the prompts, n of them for each.

        All prompts are checked before the first one runs: InvalidRequest names what is wrong. Ctrl-C ends the call between two
        steps with KeyboardInterrupt, and the LLM can be used again.
        """
        return self._collect(self._requests(self._encode(prompts), params, logprobs), progress)

    def chat(
        self,
        messages: Messages | Sequence[Messages],
        params: Params = None,
        *,
        logprobs: LogprobOptions | None = None,
        progress: Progress = False,
    ) -> list[GenerationResult]:
        """Answer one conversation (a list of {"role", "content"}) or many, rendered by the model's chat template."""
        return self._collect(self._requests(self._encode_chats(messages), params, logprobs), progress)

    async def async_generate(
        self, prompts: Prompt | Sequence[Prompt], params: Params = None, *, logprobs: LogprobOptions | None = None
    ) -> list[GenerationResult]:
        """`generate` without blocking the event loop. Calls that run at the same time share batches; cancelling one ends it."""
        ids = await asyncio.to_thread(self._encode, prompts)
        call, results = self._call(self._requests(ids, params, logprobs)), list[GenerationResult]()
        try:
            while (news := await asyncio.to_thread(call.turn)) is not None:
                results += news
        finally:
            await asyncio.to_thread(call.close)
        return sorted(results, key=_place)

    # ----------------------------------------------------------------------------------------------------- streaming
    def stream(
        self, prompt: Prompt, params: SamplingParams | None = None, *, logprobs: LogprobOptions | None = None
    ) -> Iterator[GenerationResult]:
        """Complete one prompt, yielding a result whenever there is news (`delta`). Closing the iterator ends the request."""
        return _follow(self._call(self._requests(self._encode([prompt]), params, logprobs), partial=True))

    def stream_chat(
        self, messages: Messages, params: SamplingParams | None = None, *, logprobs: LogprobOptions | None = None
    ) -> Iterator[GenerationResult]:
        """`stream` for the answer to one conversation."""
        return _follow(self._call(self._requests(self._encode_chats([messages]), params, logprobs), partial=True))

    async def astream(
        self, prompt: Prompt, params: SamplingParams | None = None, *, logprobs: LogprobOptions | None = None
    ) -> AsyncIterator[GenerationResult]:
        """`stream` for an event loop."""
        ids = await asyncio.to_thread(self._encode, [prompt])
        call = self._call(self._requests(ids, params, logprobs), partial=True)
        try:
            while (news := await asyncio.to_thread(call.turn)) is not None:
                for result in news:
                    yield result
        finally:
            await asyncio.to_thread(call.close)

    # ---------------------------------------------------------------------------------------------------- for programs
    def submit(
        self,
        prompts: Sequence[Sequence[int]],
        params: Params = None,
        *,
        logprobs: LogprobOptions | Sequence[LogprobOptions] | None = None,
        on_update: OnUpdate | None = None,
    ) -> Ticket:
        """Begin to complete prompts (ids) and return at once; a thread runs them. `cancel(ticket)` ends them early."""
        return self._pump.submit(self._requests([list(ids) for ids in prompts], params, logprobs), on_update)

    def submit_requests(self, requests: Sequence[PromptRequest], on_update: OnUpdate | None = None) -> Ticket:
        """`submit` of requests that need not be checked by anybody else; raises InvalidRequest."""
        return self._pump.submit([self._resolve(request) for request in requests], on_update)

    def cancel(self, ticket: Ticket) -> None:
        """End what `submit` began; the ticket's future then ends with Aborted."""
        self._pump.cancel(ticket)

    # ------------------------------------------------------------------------------------------------------ the rest
    @property
    def limits(self) -> ServingLimits:
        """The sizes that requests must fit."""
        return self._limits

    @property
    def desk(self) -> Desk:
        """The registry of what runs, for those who give the worker orders."""
        return self._desk

    @property
    def prompts(self) -> PromptReader:
        """How text and conversations become ids."""
        return self._prompts

    @property
    def has_chat_template(self) -> bool:
        """Whether `chat` and `stream_chat` can be used."""
        return self._prompts.has_chat_template

    @property
    def vocab_size(self) -> int:
        """Prompts may contain ids from 0 up to this, exclusive."""
        return self._limits.vocab_size

    def encode(self, prompts: Prompt | Sequence[Prompt], *, dimensions: int | None = None) -> NDArray[np.float32]:
        """The embedding of every prompt, float32 [N, size], each of length one; a classifier's scores of classes [N, classes].

        For encoders and classifiers, and for other models with `is_embedding`; raises InvalidRequest otherwise.
        """
        vectors = self._vectors([(ids, None) for ids in self._encode(prompts)])
        if self._limits.task is Task.CLASSIFY:
            return np.stack(vectors)
        check_dimensions(dimensions, self._limits.vector_size)
        return np.stack([unit(vector, dimensions) for vector in vectors])

    def score(
        self, query: str, items: Sequence[str], label_token_ids: Sequence[int] | None = None, *, apply_softmax: bool = False
    ) -> list[list[float]]:
        """How each of `items` goes with `query`: a model of text gives the probabilities of `label_token_ids` after both, a
        classifier its scores of classes for the pair, an embedding model the cosine."""
        if self._limits.task is Task.GENERATE:
            if not label_token_ids:
                raise InvalidRequest("label_token_ids is missing; name the tokens to score", param="label_token_ids")
            options = LogprobOptions(output=True, token_ids=tuple(label_token_ids))
            params = SamplingParams(max_new_tokens=1, temperature=0.0, ignore_eos=True)
            results = self.generate([query + item for item in items], params, logprobs=options)
            return [label_scores((result.logprobs or [])[0].asked_logprobs, apply_softmax) for result in results]
        if self._limits.task is Task.EMBED:
            first, *others = self.encode([query, *items])
            return [[float(first @ other)] for other in others]
        vectors = self._vectors([self._prompts.pair(query, item) for item in items])
        return [class_probabilities(vector) if apply_softmax else vector.tolist() for vector in vectors]

    def flush_cache(self) -> None:
        """Empty the prefix cache; raises Unavailable while other threads or tasks generate."""
        self._desk.flush_cache()

    def close(self) -> None:
        """Release the model's memory. Idempotent; the LLM cannot be used afterwards."""
        self._close()

    def _vectors(self, asked: Sequence[tuple[list[int], int | None]]) -> list[Vector]:
        params = SamplingParams(max_new_tokens=0)
        requests = [
            resolve_request(
                PromptRequest(rid=f"prompt-{index}", token_ids=ids, params=params, pooling=Pooling(start)), self._limits
            )
            for index, (ids, start) in enumerate(asked)
        ]
        return [unpack_vector(result.vector) for result in self._collect(requests, False)]

    def _encode(self, prompts: Prompt | Sequence[Prompt]) -> list[list[int]]:
        return [self._prompts.ids(prompt, index) for index, prompt in enumerate(_as_batch(prompts))]

    def _encode_chats(self, messages: Messages | Sequence[Messages]) -> list[list[int]]:
        return [self._prompts.chat_ids(chat) for chat in _as_chats(messages)]

    def _requests(
        self, ids: list[list[int]], params: Params, logprobs: LogprobOptions | Sequence[LogprobOptions] | None
    ) -> list[PromptRequest]:
        """Checked requests, one for each prompt; raises InvalidRequest."""
        each = list(params) if isinstance(params, Sequence) else [params or SamplingParams()] * len(ids)
        if len(each) != len(ids):
            raise InvalidRequest(
                f"{len(ids)} prompts and {len(each)} params do not match; give one, or one for each", param="params"
            )
        options = list(logprobs) if isinstance(logprobs, Sequence) else [logprobs or LogprobOptions()] * len(ids)
        return [self._request(index, prompt, each[index], options[index]) for index, prompt in enumerate(ids)]

    def _request(self, index: int, ids: list[int], params: SamplingParams, logprobs: LogprobOptions) -> PromptRequest:
        default = None
        if params.max_new_tokens == DEFAULT_MAX_NEW_TOKENS:  # nobody insisted on it: where less room is left, take less
            default, params = DEFAULT_MAX_NEW_TOKENS, msgspec.structs.replace(params, max_new_tokens=None)
        request = PromptRequest(
            rid=f"prompt-{index}", token_ids=ids, params=params, default_max_new_tokens=default, logprobs=logprobs
        )
        return self._resolve(request)

    def _resolve(self, request: PromptRequest) -> PromptRequest:
        """The request, checked; raises InvalidRequest."""
        if request.params.constraint is not None:
            check_constraint(request.params.constraint, self._grammar_options)
        return resolve_request(request, self._limits)

    def _call(self, requests: list[PromptRequest], *, partial: bool = False) -> Call:
        return Call(self._desk, requests, self._portion, partial=partial)

    def _collect(self, requests: list[PromptRequest], progress: Progress) -> list[GenerationResult]:
        total = sum(request.params.n for request in requests)
        call, results = self._call(requests), list[GenerationResult]()
        try:
            with reporting(progress) as report:
                while (news := call.turn()) is not None:
                    results += news
                    report("generating", len(results), total)
        finally:
            call.close()
        return sorted(results, key=_place)


class PromptReader:
    """Prompts as ids: text, ids as they are, or conversations rendered by the model's chat template."""

    def __init__(self, model: ModelOptions, path: str) -> None:
        self.tokenizer = open_tokenizer(model.tokenizer_path or path)
        self._chat = open_chat(self.tokenizer, model.chat_template)

    @property
    def has_chat_template(self) -> bool:
        """Whether conversations can be read."""
        return self._chat.has_template

    @property
    def chat(self) -> ChatRenderer:
        """The model's chat templates."""
        return self._chat

    def ids(self, prompt: Prompt, index: int) -> list[int]:
        """The ids of prompt number `index` of a call; control tokens that a text spells count as such."""
        if isinstance(prompt, str):
            return self.tokenizer.encode(prompt, add_special=True, parse_special=True)
        try:
            return [operator.index(token_id) for token_id in prompt]
        except TypeError:
            raise InvalidRequest(f"prompts[{index}] must be text or a list of token ids", param="prompts") from None

    def pair(self, first: str, second: str) -> tuple[list[int], int]:
        """The ids of a prompt of two texts, and where the second begins."""
        heads, tails = self.tokenizer.encode_batch([first, second], add_special=False, parse_special=False)
        return self.tokenizer.frame.pair(heads, tails)

    def chat_ids(self, messages: Messages) -> list[int]:
        """The ids of a conversation, up to where the answer begins; what its messages say stays text."""
        return self.tokenizer.encode_pieces(self._chat.render(messages), False)


def open_worker(config: Config, path: str, report: ProgressCallback) -> tuple[WorkerCore, Followers, dict[str, Any]]:
    """Rank 0, loaded and warm in this process, the ranks that follow it, and what is worth telling about them."""
    followers = Followers(config, path)
    try:
        built = build_worker(config.model, config.engine, config.scheduler, path, followers.group, report)
    except BaseException:
        followers.close()
        raise
    log = open_step_log(config.scheduler.step_log, built.engine.limits, built.options)
    overlap = config.scheduler.overlap
    worker = WorkerCore(built.scheduler, built.engine, overlap, followers.share, log, built.transfers, built.grammars)
    worker.appoint(built.steward)
    return worker, followers, built.info


def configure(model: str | None, options: Mapping[str, Any]) -> Config:
    """The configuration of an engine without a server: keywords over SAPWOOD_… variables."""
    given = from_mapping(options if model is None else {"model_path": model, **options}, "LLM")
    for name in given.values:
        if find(name, "LLM").group not in LLM_GROUPS:
            raise ConfigError(f"LLM: {name} is an option of the server; leave it out", param=name)
    around = from_environment(os.environ)
    of_engine = {name: value for name, value in around.values.items() if find(name, "environment").group in LLM_GROUPS}
    return resolve(given.over(RawOptions(of_engine, around.sources)), probe_host())


def _as_batch(prompts: Prompt | Sequence[Prompt]) -> list[Prompt]:
    """One prompt (text, or a sequence of ids) as a batch of one."""
    is_one = isinstance(prompts, str) or (len(prompts) > 0 and not isinstance(prompts[0], str | Sequence))
    return [cast(Prompt, prompts)] if is_one else list(cast(Sequence[Prompt], prompts))


def _as_chats(messages: Messages | Sequence[Messages]) -> list[Messages]:
    """One conversation as a batch of one."""
    is_one = not messages or isinstance(messages[0], Mapping)
    return [cast(Messages, messages)] if is_one else list(cast(Sequence[Messages], messages))


def _follow(call: Call) -> Iterator[GenerationResult]:
    try:
        while (news := call.turn()) is not None:
            yield from news
    finally:
        call.close()


def _place(result: GenerationResult) -> tuple[int, int]:
    return result.index, result.sample_index
