"""The one internal request model behind all dialects, and the rules that make it safe to run.

Knows ids, parameters and limits; does not know JSON or HTTP. Invariant: a `PromptRequest` that `resolve` returned needs no
further check by anyone: every id is in the vocabulary, every number in range, and prompt plus completion fit.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

import msgspec

from sapwood.core.pooling import Pooling, Task
from sapwood.core.sampling import MAX_TOP_LOGPROBS, LogprobOptions, SamplingParams, validate
from sapwood.detokenizer.stopping import StopMatcher
from sapwood.errors import InvalidRequest, PromptTooLong
from sapwood.server.limits import ServingLimits

MAX_RID_CHARS = 256
MAX_ASKED_IDS = 1024
MAX_STOP_CHARS = 4096
"""Of all stop strings of a request."""
MAX_PROMPT_LOGPROBS = 1 << 21
"""Numbers in the answer to one prompt, over its positions, candidates and samples."""
ALL_AT_ONCE = 2**31
"""The stream interval of calls whose answer is not streamed: nobody is woken before the end."""


class PromptRequest(msgspec.Struct, frozen=True, kw_only=True):
    """One prompt and what to make of it; `params.n` samples are wanted.

    `params.max_new_tokens=None` means that the client gave none: `default_max_new_tokens` then applies, clamped to the room
    that is left (None: all of it). With `pooling` the prompt's vector is wanted, and `max_new_tokens` is 0. `namespace`
    separates prefix-cache entries; the session `pin` keeps the pages for `pin_s`.
    """

    rid: str
    token_ids: list[int]
    params: SamplingParams
    default_max_new_tokens: int | None = None
    logprobs: LogprobOptions = LogprobOptions()
    priority: int = 0
    routing_key: str = ""
    queue_timeout_s: float | None = None
    timeout_s: float | None = None
    namespace: str = ""
    pin: str = ""
    pin_s: float = 0.0
    pooling: Pooling | None = None


@dataclass(frozen=True, slots=True)
class GenerateRequest:
    """One call: its prompts in order. Sample s of prompt p is choice `sum of n of the prompts before p` + s.

    `stream_interval` is the number of tokens per update (the first and the last one excepted).
    """

    prompts: tuple[PromptRequest, ...]
    stream_interval: int = 1

    @property
    def num_samples(self) -> int:
        """How many completions are asked for in all."""
        return sum(prompt.params.n for prompt in self.prompts)


def make_namespace(cache_salt: str | None, extra_key: str | None) -> str:
    """The prefix-cache namespace of a pair of client keys; different pairs never give the same namespace."""
    if not cache_salt and not extra_key:
        return ""
    return msgspec.json.encode((cache_salt or "", extra_key or "")).decode()


def all_if_zero(top_k: int | None) -> int | None:
    """A `top_k` of a client for whom 0 means the whole vocabulary."""
    return -1 if top_k == 0 else top_k


def resolve(prompt: PromptRequest, limits: ServingLimits) -> PromptRequest:
    """The request with `max_new_tokens` set (and the prompt cut, where the server may); raises InvalidRequest naming a field."""
    check_task(prompt.pooling is not None, limits.task)
    validate(prompt.params, limits.vocab_size)
    _check_caps(prompt, limits)
    if not 0 < len(prompt.rid) <= MAX_RID_CHARS:
        raise InvalidRequest(f"rid must have 1 to {MAX_RID_CHARS} characters", param="rid")
    _check_ids("prompt", prompt.token_ids, limits.vocab_size)
    if not prompt.token_ids:
        raise InvalidRequest("prompt must not be empty; send at least one token", param="prompt")
    prompt = _fit(prompt, limits)
    _check_logprobs(prompt.logprobs, len(prompt.token_ids), limits.vocab_size)
    _check_prompt_logprobs(prompt)
    _check_stops(prompt.params)
    return prompt


def check_task(wants_vector: bool, task: Task) -> None:
    """Refuse what the model is not served for, and say what it is served for."""
    if wants_vector and task is Task.GENERATE:
        raise InvalidRequest(
            "this server makes text, not vectors; start it with --is-embedding, or with an embedding model, to ask for these",
            param="model",
        )
    if not wants_vector and task is not Task.GENERATE:
        routes = "/v1/embeddings or /encode" if task is Task.EMBED else "/v1/classify or /v1/rerank"
        raise InvalidRequest(f"this server's model does not make text; ask {routes}", param="model")


@contextmanager
def named_as(names: Mapping[str, str]) -> Iterator[None]:
    """Let an InvalidRequest from inside speak of a dialect's field names: `names` maps internal to the client's."""
    try:
        yield
    except InvalidRequest as error:
        theirs = names.get(error.param or "")
        if error.param is None or theirs is None:
            raise
        raise type(error)(error.message.replace(error.param, theirs), param=theirs) from None


def _fit(prompt: PromptRequest, limits: ServingLimits) -> PromptRequest:
    most = limits.max_request_tokens
    explicit = prompt.params.max_new_tokens
    token_ids = prompt.token_ids
    if limits.allow_auto_truncate:
        token_ids = token_ids[: max(1, most - (1 if explicit != 0 else 0))]
    room = most - len(token_ids)
    if room < 0 or (room == 0 and explicit != 0):
        raise PromptTooLong(
            f"prompt has {len(token_ids)} tokens > {most} maximum: this model's maximum context length is {most} tokens, "
            "the completion included; shorten the prompt",
            param="prompt",
        )
    max_new = min(prompt.default_max_new_tokens or room, room) if explicit is None else explicit
    if max_new > room:
        if not limits.allow_auto_truncate:
            raise PromptTooLong(
                f"max_new_tokens is {max_new}, but a prompt of {len(token_ids)} tokens leaves room for {room}: this model's "
                f"maximum context length is {most} tokens; lower max_new_tokens or shorten the prompt",
                param="max_new_tokens",
            )
        max_new = room
    min_new = prompt.params.min_new_tokens
    if min_new > max_new:
        raise InvalidRequest(f"min_new_tokens is {min_new}, but at most {max_new} tokens will be made", param="min_new_tokens")
    params = msgspec.structs.replace(prompt.params, max_new_tokens=max_new)
    return msgspec.structs.replace(prompt, token_ids=token_ids, params=params)


def _check_caps(prompt: PromptRequest, limits: ServingLimits) -> None:
    """What this server's options allow less of than any server takes."""
    caps, params = limits.caps, prompt.params
    shortens = limits.allow_auto_truncate or caps.prompt_tokens is None
    for name, unit, count, most in (
        ("n", "samples", params.n, caps.samples),
        ("stop", "texts", len(params.stop), caps.stop_strings),
        ("stop", "characters", sum(map(len, params.stop)), caps.stop_chars),
        ("stop_regex", "patterns", len(params.stop_regex), caps.stop_strings),
        ("stop_regex", "bytes", max((len(each.encode()) for each in params.stop_regex), default=0), caps.stop_regex_bytes),
        ("logit_bias", "entries", len(params.logit_bias), caps.logit_bias),
        ("top_logprobs", "candidates", prompt.logprobs.top_n, caps.top_logprobs),
        ("prompt", "tokens", 0 if shortens else len(prompt.token_ids), caps.prompt_tokens or 0),
    ):
        if count > most:
            message = f"{name} has {count} {unit}, and this server takes at most {most}; ask for less"
            raise InvalidRequest(message, param=name)


def _check_logprobs(options: LogprobOptions, num_prompt: int, vocab_size: int) -> None:
    if not 0 <= options.top_n <= MAX_TOP_LOGPROBS:
        raise InvalidRequest(f"top_logprobs must be from 0 to {MAX_TOP_LOGPROBS}, got {options.top_n}", param="top_logprobs")
    if len(options.token_ids) > MAX_ASKED_IDS:
        raise InvalidRequest(f"token_ids_logprob takes at most {MAX_ASKED_IDS} ids", param="token_ids_logprob")
    _check_ids("token_ids_logprob", options.token_ids, vocab_size)
    start = options.prompt_start
    if start is not None and not 0 <= start < num_prompt:
        raise InvalidRequest(
            f"logprob_start_len must be -1 or a position of the prompt (0 to {num_prompt - 1}), got {start}",
            param="logprob_start_len",
        )


def _check_prompt_logprobs(prompt: PromptRequest) -> None:
    options = prompt.logprobs
    if options.prompt_start is None:
        return
    positions = len(prompt.token_ids) - options.prompt_start
    count = positions * (1 + options.top_n + len(options.token_ids)) * prompt.params.n
    if count > MAX_PROMPT_LOGPROBS:
        raise InvalidRequest(
            f"top_logprobs: {count} log-probabilities of the prompt are asked for and {MAX_PROMPT_LOGPROBS} are the limit; "
            "ask for fewer candidates, positions or samples",
            param="top_logprobs",
        )


def _check_ids(name: str, token_ids: list[int] | tuple[int, ...], vocab_size: int) -> None:
    if token_ids and not (min(token_ids) >= 0 and max(token_ids) < vocab_size):
        wrong = next(token_id for token_id in token_ids if not 0 <= token_id < vocab_size)
        raise InvalidRequest(f"{name}: id {wrong} is outside the vocabulary (0 to {vocab_size - 1})", param=name)


def _check_stops(params: SamplingParams) -> None:
    """What the detokenizer would refuse later, or spend much time on."""
    if sum(map(len, params.stop)) > MAX_STOP_CHARS:
        raise InvalidRequest(f"stop may have at most {MAX_STOP_CHARS} characters in all its strings", param="stop")
    if params.stop_regex:
        StopMatcher(stop_regex=params.stop_regex)
