"""SGLang's answer to `/generate`: text, ids and `meta_info`.

Shapes what a record holds; runs nothing. Invariant: the keys that SGLang always sends are always there; log-probabilities are
triples of (log-probability, id, text or null), and the first reported prompt position has none.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import msgspec
from msgspec import UNSET, UnsetType

from sapwood.core.sampling import LogprobOptions, TokenLogprobs
from sapwood.messages.types import Finish
from sapwood.server.backend import Vocabulary
from sapwood.server.record import RequestRecord, Update
from sapwood.server.steering import DEFAULT_VERSION, Steering

Triple = tuple[float | None, int, str | None]


@dataclass(frozen=True, slots=True)
class ReplyShape:
    """How this call wants its answer. `is_list`: a batch or several samples; events then carry an index."""

    vocabulary: Vocabulary
    is_list: bool
    with_token_text: bool = False
    with_prompt_ids: bool = False
    with_tiers: bool = False
    steering: Steering | None = None

    def triple(self, token_id: int, logprob: float | None) -> Triple:
        """One entry of a list of log-probabilities."""
        return logprob, token_id, self.vocabulary.token_text(token_id) if self.with_token_text else None


class MetaInfo(msgspec.Struct, kw_only=True):
    """`meta_info`. Latencies in seconds; the log-probability lists only when asked for."""

    id: str
    finish_reason: dict[str, Any] | None
    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int
    cached_tokens_details: dict[str, int] | UnsetType = UNSET
    reasoning_tokens: int = 0
    num_retractions: int = 0
    weight_version: str = DEFAULT_VERSION
    e2e_latency: float | UnsetType = UNSET
    queue_time: float | UnsetType = UNSET
    input_token_logprobs: list[Triple] | UnsetType = UNSET
    output_token_logprobs: list[Triple] | UnsetType = UNSET
    output_token_logprobs_length: int | UnsetType = UNSET
    input_top_logprobs: list[list[Triple] | None] | UnsetType = UNSET
    output_top_logprobs: list[list[Triple] | None] | UnsetType = UNSET
    input_token_ids_logprobs: list[list[Triple] | None] | UnsetType = UNSET
    output_token_ids_logprobs: list[list[Triple] | None] | UnsetType = UNSET


class Reply(msgspec.Struct, kw_only=True):
    """One sample: the whole answer, or one event of a stream."""

    text: str
    output_ids: list[int]
    meta_info: MetaInfo
    index: int | UnsetType = UNSET
    prompt_token_ids: list[int] | UnsetType = UNSET


def reply(shape: ReplyShape, update: Update, *, incremental: bool, in_stream: bool) -> Reply:
    """The answer for `update`: what is new if `incremental`, else everything so far."""
    record = update.record
    first = update.first if incremental else 0
    return Reply(
        text=update.text if incremental else record.text,
        output_ids=record.token_ids[first:] if first else record.token_ids,
        meta_info=_meta_info(shape, record, first),
        index=record.index if in_stream and shape.is_list else UNSET,
        prompt_token_ids=record.prompt.token_ids if shape.with_prompt_ids else UNSET,
    )


def finish_reason(finish: Finish | None, num_completion: int) -> dict[str, Any] | None:
    """SGLang's finish reason: null while running, else an object with its type."""
    if finish is None:
        return None
    match finish.kind:
        case "stop":
            return {"type": "stop", "matched": finish.matched}
        case "length":
            return {"type": "length", "length": num_completion}
        case _:
            return {"type": "abort", "message": finish.message, "status_code": finish.status, "err_type": finish.code}


def prompt_positions(record: RequestRecord) -> list[TokenLogprobs]:
    """Log-probabilities of the prompt from `prompt_start` on; position 0, which has none by definition, included."""
    start = record.prompt.logprobs.prompt_start
    if start is None:
        return []
    missing = record.num_prompt - start - len(record.prompt_logprobs)
    if start == 0 and missing == 1:
        return [TokenLogprobs(record.prompt.token_ids[0], None), *record.prompt_logprobs]
    return record.prompt_logprobs


def _meta_info(shape: ReplyShape, record: RequestRecord, first: int) -> MetaInfo:
    options = record.prompt.logprobs
    info = MetaInfo(
        id=record.rid,
        finish_reason=finish_reason(record.finish, len(record.token_ids)),
        prompt_tokens=record.num_prompt,
        completion_tokens=len(record.token_ids),
        cached_tokens=record.num_cached,
        num_retractions=record.num_retractions,
        weight_version=shape.steering.weight_version if shape.steering else DEFAULT_VERSION,
    )
    if shape.with_tiers:
        host, storage = record.cached_below
        device = max(record.num_cached - host - storage, 0)
        info.cached_tokens_details = {"device": device, "host": host, "storage": storage}
    if record.queue_s is not None:
        info.queue_time = record.queue_s
    if record.finish is not None:
        info.e2e_latency = record.timings.finished_s - record.timings.received_s
    if options.output:
        _add_logprobs(info, shape, options, record, first)
    return info


def _add_logprobs(info: MetaInfo, shape: ReplyShape, options: LogprobOptions, record: RequestRecord, first: int) -> None:
    completion = record.logprobs[first:]
    prompt = prompt_positions(record) if first == 0 else []
    if prompt:
        prompt = [TokenLogprobs(prompt[0].token_id, None), *prompt[1:]]
    info.output_token_logprobs = [shape.triple(entry.token_id, entry.logprob) for entry in completion]
    info.output_token_logprobs_length = len(completion)
    info.input_token_logprobs = [shape.triple(entry.token_id, entry.logprob) for entry in prompt]
    if options.top_n:
        info.output_top_logprobs = [_top(shape, entry) for entry in completion]
        info.input_top_logprobs = [_top(shape, entry) for entry in prompt]
    if options.token_ids:
        info.output_token_ids_logprobs = [_asked(shape, options, entry) for entry in completion]
        info.input_token_ids_logprobs = [_asked(shape, options, entry) for entry in prompt]


def _top(shape: ReplyShape, entry: TokenLogprobs) -> list[Triple] | None:
    if entry.logprob is None:
        return None
    return [shape.triple(token_id, logprob) for token_id, logprob in zip(entry.top_ids, entry.top_logprobs, strict=True)]


def _asked(shape: ReplyShape, options: LogprobOptions, entry: TokenLogprobs) -> list[Triple] | None:
    if entry.logprob is None:
        return None
    return [shape.triple(token_id, logprob) for token_id, logprob in zip(options.token_ids, entry.asked_logprobs, strict=True)]
