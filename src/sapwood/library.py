"""`Engine`: SGLang's offline engine API over an `LLM`, for trainers and evaluators that were written for it.

Owns SGLang's shapes (keywords in, dicts out) and the sessions; everything runs on the LLM. Invariant: a field is honoured or
refused by name, as `/generate` does, because both read bodies with the same decoders.
"""

from __future__ import annotations

import asyncio
import queue
import time
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from functools import partial
from types import TracebackType
from typing import Any, NoReturn

import msgspec

from sapwood.config.options import LLM_GROUPS, find
from sapwood.core.sampling import SamplingParams
from sapwood.errors import InvalidRequest
from sapwood.llm import LLM
from sapwood.offline import raise_if_failed
from sapwood.pump import Ticket
from sapwood.server.body import Decoder, refuse
from sapwood.server.constraints import only_one, want
from sapwood.server.native.control import check_memory_fields, read_num_steps, read_update
from sapwood.server.native.generate import (
    DEFAULT_MAX_NEW_TOKENS,
    check_source,
    logprob_options,
    request_ids,
    sampling_params,
    spread,
    with_prefix,
)
from sapwood.server.native.reply import ReplyShape, reply
from sapwood.server.native.schema import CONSTRAINTS, GenerateFields, GenerateRefusals, SamplingFields
from sapwood.server.record import Update
from sapwood.server.requests import PromptRequest, make_namespace
from sapwood.server.sessions import SessionParams, Sessions

LARGEST_CAPACITY = 2**31 - 1
Reply = dict[str, Any]
_fields: Decoder[GenerateFields] = Decoder(GenerateFields)
_refusals = Decoder(GenerateRefusals)


class Engine:
    """A model in this process under SGLang's names. A context manager; may be used from several threads and tasks.

    `model_path` and options are those of `LLM`; options that only a server has mean nothing here and are ignored.
    """

    def __init__(self, model_path: str | None = None, **options: Any) -> None:
        self.llm = LLM(model_path, **{name: value for name, value in options.items() if _is_known_to_llm(name)})
        self._sessions = Sessions(time.monotonic, self.llm.desk.unpin, self._abort)
        self._turns: dict[str, Ticket] = {}

    @property
    def lang_backend(self) -> LLM:
        """What programs of `sapwood.lang` run on."""
        return self.llm

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.shutdown()

    # -------------------------------------------------------------------------------------------------------- generation
    def generate(
        self,
        prompt: str | list[str] | None = None,
        sampling_params: Any = None,
        input_ids: Any = None,
        *,
        stream: bool = False,
        **fields: Any,
    ) -> Reply | list[Reply] | Iterator[Reply]:
        """What `/generate` answers: a dict, a list of them for a batch or several samples, or with `stream` an iterator of dicts
        whose text grows. Raises InvalidRequest naming a field; closing the iterator ends the requests."""
        requests, shape, session = self._read(
            {"text": prompt, "sampling_params": sampling_params, "input_ids": input_ids, **fields}
        )
        if stream:
            return self._stream(requests, shape, session)
        ticket = self._submit(requests, session)
        try:
            return _whole(ticket.future.result(), shape)
        except BaseException:
            self.llm.cancel(ticket)
            raise

    async def async_generate(
        self,
        prompt: str | list[str] | None = None,
        sampling_params: Any = None,
        input_ids: Any = None,
        *,
        stream: bool = False,
        **fields: Any,
    ) -> Reply | list[Reply] | AsyncIterator[Reply]:
        """`generate` for an event loop; cancelling the task ends the requests."""
        body = {"text": prompt, "sampling_params": sampling_params, "input_ids": input_ids, **fields}
        requests, shape, session = await asyncio.to_thread(self._read, body)
        if stream:
            return self._async_stream(requests, shape, session)
        ticket = self._submit(requests, session)
        try:
            return _whole(await asyncio.wrap_future(ticket.future), shape)
        except BaseException:
            self.llm.cancel(ticket)
            raise

    def _stream(self, requests: list[PromptRequest], shape: ReplyShape, session: SessionParams | None) -> Iterator[Reply]:
        news: queue.SimpleQueue[Reply | None] = queue.SimpleQueue()
        ticket = self._submit(requests, session, lambda update: news.put(_reply(shape, update, in_stream=True)))
        ticket.future.add_done_callback(lambda future: news.put(None))
        return self._follow(ticket, news)

    def _follow(self, ticket: Ticket, news: queue.SimpleQueue[Reply | None]) -> Iterator[Reply]:
        try:
            while (answer := news.get()) is not None:
                yield answer
            ticket.future.result()
        finally:
            self.llm.cancel(ticket)

    async def _async_stream(
        self, requests: list[PromptRequest], shape: ReplyShape, session: SessionParams | None
    ) -> AsyncIterator[Reply]:
        loop, news = asyncio.get_running_loop(), asyncio.Queue[Reply | None]()

        def put(answer: Reply | None) -> None:
            loop.call_soon_threadsafe(news.put_nowait, answer)

        ticket = self._submit(requests, session, lambda update: put(_reply(shape, update, in_stream=True)))
        ticket.future.add_done_callback(lambda future: put(None))
        try:
            while (answer := await news.get()) is not None:
                yield answer
            ticket.future.result()
        finally:
            self.llm.cancel(ticket)

    # --------------------------------------------------------------------------------------------------- vectors and scores
    def encode(self, prompt: str | list[str], dimensions: int | None = None) -> Reply | list[Reply]:
        """`{"embedding": [...], "meta_info": {...}}`, or a list of them; for embedding models and classifiers."""
        prompts = [prompt] if isinstance(prompt, str) else list(prompt)
        counts = [len(self.llm.prompts.ids(text, index)) for index, text in enumerate(prompts)]
        vectors = self.llm.encode(prompts, dimensions=dimensions)
        answers = [_vector_reply(vector.tolist(), count) for vector, count in zip(vectors, counts, strict=True)]
        return answers[0] if isinstance(prompt, str) else answers

    async def async_encode(self, prompt: str | list[str], dimensions: int | None = None) -> Reply | list[Reply]:
        """`encode` for an event loop."""
        return await asyncio.to_thread(self.encode, prompt, dimensions)

    def rerank(self, prompt: Sequence[Sequence[str]]) -> list[Reply]:
        """The scores of pairs (query, document): `{"embedding": score, "meta_info": {...}}` for each."""
        answers = []
        for query, document in prompt:
            [scores] = self.llm.score(query, [document])
            answers.append(_vector_reply(scores[0] if len(scores) == 1 else scores, 0))
        return answers

    def score(
        self,
        query: str,
        items: Sequence[str],
        label_token_ids: Sequence[int] | None = None,
        apply_softmax: bool = False,
        item_first: bool = False,
    ) -> list[list[float]]:
        """For each item the scores of the labels, after query and item (or item and query)."""
        if item_first:
            rows = [self.llm.score(item, [query], label_token_ids, apply_softmax=apply_softmax) for item in items]
            return [row for [row] in rows]
        return self.llm.score(query, items, label_token_ids, apply_softmax=apply_softmax)

    async def async_score(self, query: str, items: Sequence[str], **options: Any) -> list[list[float]]:
        """`score` for an event loop."""
        return await asyncio.to_thread(partial(self.score, query, items, **options))

    # -------------------------------------------------------------------------------------------------------- the rest
    def open_session(self, capacity_of_str_len: int = LARGEST_CAPACITY, session_id: str | None = None) -> str:
        """The id of a new session; `session_params` of `generate` continue its turns."""
        return self._sessions.open(session_id, capacity_of_str_len, None)

    def close_session(self, session_id: str) -> None:
        """Forget a session."""
        self._sessions.close(session_id)

    def flush_cache(self) -> None:
        """Empty the prefix cache; raises Unavailable while requests run."""
        self.llm.flush_cache()

    def update_weights_from_disk(self, model_path: str, load_format: str | None = None, **fields: Any) -> tuple[bool, str, int]:
        """Other weights of the same shape, from a folder of safetensors: whether they are in place, what happened, and how many
        requests waited for it. `weight_version` names them in `meta_info`; raises InvalidRequest for a field."""
        read = read_update(_as_body({"model_path": model_path, "load_format": load_format, **fields}))
        num_paused = self.llm.desk.num_open
        try:
            return True, self.llm.upkeep.load_weights(read.model_path, read.weight_version), num_paused
        except InvalidRequest as error:
            return False, error.message, num_paused

    def release_memory_occupation(self, tags: Sequence[str] | None = None) -> None:
        """Free the memory of weights and KV cache; requests are refused until it is resumed."""
        check_memory_fields(_as_body({"tags": tags}))
        self.llm.upkeep.release_memory()

    def resume_memory_occupation(self, tags: Sequence[str] | None = None) -> None:
        """Load the weights again."""
        check_memory_fields(_as_body({"tags": tags}))
        self.llm.upkeep.resume_memory()

    def start_profile(self, num_steps: int | None = None, **fields: Any) -> str:
        """Begin to record steps; what only SGLang's profiler has is refused by name."""
        return self.llm.upkeep.start_profile(read_num_steps(_as_body({"num_steps": num_steps, **fields})))

    def stop_profile(self) -> str:
        """The file of the recorded steps."""
        return self.llm.upkeep.stop_profile()

    def get_server_info(self) -> Reply:
        """The configuration and the sizes that requests must fit."""
        limits = self.llm.limits
        sizes = {"max_total_num_tokens": limits.pool_tokens, "context_length": limits.context_len}
        return {**msgspec.to_builtins(self.llm.config.model, enc_hook=str), **sizes, "max_running_requests": self.llm.num_slots}

    def get_model_info(self) -> Reply:
        """The model."""
        config = self.llm.config.model
        return {
            "model_path": config.model_path,
            "tokenizer_path": config.tokenizer_path or config.model_path,
            "vocab_size": self.llm.vocab_size,
            "has_chat_template": self.llm.has_chat_template,
        }

    def load_lora_adapter(self, lora_name: str, lora_path: str, pinned: bool = False) -> NoReturn:
        """Refused: there are no adapters yet."""
        raise InvalidRequest("LoRA adapters are not supported; merge the adapter into the weights", param="lora_path")

    def unload_lora_adapter(self, lora_name: str) -> NoReturn:
        """Refused: there are no adapters yet."""
        raise InvalidRequest(f"no adapter {lora_name!r} is loaded: LoRA adapters are not supported", param="lora_name")

    def shutdown(self) -> None:
        """Release the model. Idempotent."""
        self.llm.close()

    # -------------------------------------------------------------------------------------------------- reading requests
    def _read(self, body: Mapping[str, Any]) -> tuple[list[PromptRequest], ReplyShape, SessionParams | None]:
        given = _as_body(body)
        fields = _fields.decode(given)
        refuse(_refusals.decode(given))
        prompts, is_batch = self._prompt_ids(fields)
        session = fields.session_params
        if session is not None:
            if is_batch:
                raise InvalidRequest("a session takes one prompt at a time", param="session_params")
            prompts = [self._sessions.compose(session, prompts[0], self.llm.limits.max_request_tokens)]
        requests, num_samples = _requests(fields, prompts, is_batch)
        if session is not None:
            pin_s = self._sessions.timeout_s(session.id)
            requests = [msgspec.structs.replace(request, pin=session.id or "", pin_s=pin_s) for request in requests]
        shape = ReplyShape(
            vocabulary=self.llm.prompts.tokenizer,
            is_list=is_batch or num_samples > 1,
            with_token_text=bool(fields.return_text_in_logprobs),
            with_prompt_ids=bool(fields.return_prompt_token_ids),
            with_tiers=self.llm.limits.has_tiers,
            steering=self.llm.upkeep.steering,
        )
        return requests, shape, session

    def _prompt_ids(self, fields: GenerateFields) -> tuple[list[list[int]], bool]:
        check_source(fields, "prompt")
        if fields.text is None:
            return with_prefix(fields)
        continues = fields.session_params is not None and fields.session_params.rid is not None
        texts = [fields.text] if isinstance(fields.text, str) else fields.text
        if not texts:
            raise InvalidRequest("prompt must not be an empty list", param="prompt")
        parse_special = fields.parse_special is not False
        encode = partial(self.llm.prompts.tokenizer.encode, add_special=not continues, parse_special=parse_special)
        return [encode(text) for text in texts], not isinstance(fields.text, str)

    def _submit(self, requests: list[PromptRequest], session: SessionParams | None, on_update: Any = None) -> Ticket:
        ticket = self.llm.submit_requests(requests, on_update)
        if session is not None:
            ticket.has_begun.wait()
            rid = requests[0].rid
            self._turns[rid] = ticket
            ticket.future.add_done_callback(lambda future: self._turns.pop(rid, None))
            if ticket.records:
                self._sessions.begin(session, rid, ticket.records[0])
        return ticket

    def _abort(self, rid: str) -> None:
        if (ticket := self._turns.get(rid)) is not None:
            self.llm.cancel(ticket)


def _as_body(fields: Mapping[str, Any]) -> bytes:
    """Keywords as the body that the server's decoders read."""
    return msgspec.json.encode({name: value for name, value in fields.items() if value is not None})


def _is_known_to_llm(name: str) -> bool:
    """Whether an option is more than a server's; raises ConfigError for a name that there is not."""
    return name == "progress" or find(name, "Engine").group in LLM_GROUPS


def _constrained(fields: SamplingFields) -> SamplingParams:
    """The parameters with their constraint; the LLM checks whether it compiles."""
    wanted = only_one([want(kind, kind, value) for kind in CONSTRAINTS if (value := getattr(fields, kind))])
    return msgspec.structs.replace(sampling_params(fields), constraint=wanted.constraint if wanted is not None else None)


def _requests(fields: GenerateFields, prompts: list[list[int]], is_batch: bool) -> tuple[list[PromptRequest], int]:
    """One request for each prompt, and how many samples of each are wanted."""
    count = len(prompts)
    samplings = [item or SamplingFields() for item in spread(fields.sampling_params, count, "sampling_params")]
    if len({item.n or 1 for item in samplings}) > 1:
        raise InvalidRequest("sampling_params: n must be the same for every prompt of a batch", param="n")
    logprobs = logprob_options(fields, [len(ids) for ids in prompts])
    salts, keys = spread(fields.cache_salt, count, "cache_salt"), spread(fields.extra_key, count, "extra_key")
    rows = zip(request_ids(fields.rid, count, is_batch), prompts, samplings, logprobs, salts, keys, strict=True)
    requests = [
        PromptRequest(
            rid=rid,
            token_ids=ids,
            params=_constrained(sampling),
            default_max_new_tokens=DEFAULT_MAX_NEW_TOKENS if sampling.max_new_tokens is msgspec.UNSET else None,
            logprobs=options,
            priority=fields.priority or 0,
            routing_key=fields.routing_key or "",
            queue_timeout_s=fields.queue_timeout_s,
            timeout_s=fields.timeout_s,
            namespace=make_namespace(salt, key),
        )
        for rid, ids, sampling, options, salt, key in rows
    ]
    return requests, samplings[0].n or 1


def _reply(shape: ReplyShape, update: Update, *, in_stream: bool) -> Reply:
    answer: Reply = msgspec.to_builtins(reply(shape, update, incremental=False, in_stream=in_stream))
    if "index" in answer:
        answer["index"] = update.record.index * update.record.prompt.params.n + update.record.sample_index
    return answer


def _whole(updates: list[Update], shape: ReplyShape) -> Reply | list[Reply]:
    for update in updates:
        raise_if_failed(update)
    answers = [_reply(shape, update, in_stream=False) for update in updates]
    return answers if shape.is_list else answers[0]


def _vector_reply(vector: Any, num_prompt: int) -> Reply:
    return {"embedding": vector, "meta_info": {"prompt_tokens": num_prompt}}
