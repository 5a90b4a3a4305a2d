"""`/v1/completions`, whole and streamed: texts or ids, one prompt or many, echo, log-probabilities as evaluators read them.

Turns the body into a call and records into answers; runs nothing. Invariant: with echo and log-probabilities there is one entry
for each prompt id and each completion id, none merged, and the chosen token is among the candidates with the same value.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

from fastapi import APIRouter, Request, Response
from msgspec import UNSET, UnsetType

from sapwood.core.sampling import LogprobOptions, TokenLogprobs
from sapwood.errors import InvalidRequest
from sapwood.server.backend import Vocabulary
from sapwood.server.body import Decoder, make_refusals, refuse
from sapwood.server.context import ServerContext
from sapwood.server.failures import raise_failure
from sapwood.server.native.generate import split_ids
from sapwood.server.native.reply import prompt_positions
from sapwood.server.openai.call import Call, open_call, read_call
from sapwood.server.openai.chunks import chunk_events
from sapwood.server.openai.replies import (
    Completion,
    CompletionChoice,
    CompletionLogprobs,
    Usage,
    finish_reason,
    matched_stop,
    usage_of,
)
from sapwood.server.openai.schema import CompletionFields
from sapwood.server.record import RequestRecord, Update
from sapwood.server.sse import EventStream, collect, event, json_response
from sapwood.server.stream import Stream

DEFAULT_MAX_TOKENS = 16
_fields: Decoder[CompletionFields] = Decoder(CompletionFields)
_refusals = Decoder(make_refusals("CompletionRefusals", ("tools",)))
NAMES = {"top_logprobs": "logprobs"}


def completion_routes(context: ServerContext) -> APIRouter:
    """The router of this family."""
    router = APIRouter(tags=["openai"])

    async def complete(request: Request) -> Response:
        call, data = await read_call(context, request, "cmpl-")
        refuse(_refusals.decode(data))
        fields = _fields.decode(data)
        options = _logprob_options(fields)
        prompts, texts = await _prompts(context, fields, call.params.n)
        echoes = await _echoes(context, call, prompts, texts) if fields.echo else None
        if fields.suffix:
            call = call.with_stops(context.fim().end_ids)
        stream = await open_call(context, call, prompts, options, DEFAULT_MAX_TOKENS, NAMES)
        writer = CompletionWriter(
            call, stream, context.model.name, CompletionShape(context.model.vocabulary, call.params.n, echoes)
        )
        if call.fields.stream:
            return EventStream(stream, chunk_events(stream, writer))
        await collect(stream, request)
        return json_response(writer.whole())

    router.add_api_route("/v1/completions", complete, methods=["POST"], summary="Complete one prompt or several")
    return router


@dataclass(frozen=True, slots=True)
class CompletionShape:
    """How the choices are shown. `echoes` holds each prompt's text when it is to be repeated."""

    vocabulary: Vocabulary
    n: int
    echoes: list[str] | None

    def echo(self, record: RequestRecord) -> str:
        """The text in front of a choice's completion."""
        return self.echoes[record.index // self.n] if self.echoes is not None else ""

    def entries(self, record: RequestRecord, new: list[TokenLogprobs], is_first: bool) -> list[TokenLogprobs]:
        """The positions to show, the prompt's first."""
        return [*prompt_positions(record), *new] if is_first and self.echoes is not None else new


class CompletionWriter:
    """Makes the answer, or the chunks, of one call."""

    def __init__(self, call: Call, stream: Stream, model: str, shape: CompletionShape) -> None:
        self._call = call
        self._wants_usage = call.wants_usage
        self._stream = stream
        self._model = model
        self._shape = shape
        self._begun: set[int] = set()
        self._held: dict[int, list[TokenLogprobs]] = {}
        self._offsets: dict[int, int] = {}

    def write(self, update: Update) -> list[bytes]:
        """Text as it comes; the finish reason travels with the last of it."""
        record = update.record
        if record.prompt.logprobs.output:
            self._held.setdefault(record.index, []).extend(update.logprobs)
        if update.finish is None and not update.text:
            return []
        is_first = record.index not in self._begun
        self._begun.add(record.index)
        new = self._held.pop(record.index, [])
        choice = CompletionChoice(
            index=record.index,
            text=self._shape.echo(record) + update.text if is_first else update.text,
            logprobs=self._logprobs(record, new, is_first) if record.prompt.logprobs.output else None,
            finish_reason=None if update.finish is None else finish_reason(record),
            matched_stop=UNSET if update.finish is None else matched_stop(record),
        )
        return [event(self._answer([choice], self._running_usage))]

    @property
    def _running_usage(self) -> Usage | None | UnsetType:
        if not self._wants_usage:
            return UNSET
        return usage_of(self._stream.records) if self._call.wants_running_usage else None

    def last(self) -> list[bytes]:
        """The usage, if it was asked for."""
        return [event(self._answer([], usage_of(self._stream.records)))] if self._wants_usage else []

    def whole(self) -> Completion:
        """The answer when everything is there."""
        choices = []
        for record in self._stream.records:
            raise_failure(record.finish)
            choices.append(
                CompletionChoice(
                    index=record.index,
                    text=self._shape.echo(record) + record.text,
                    logprobs=self._logprobs(record, record.logprobs, True) if record.prompt.logprobs.output else None,
                    finish_reason=finish_reason(record),
                    matched_stop=matched_stop(record),
                )
            )
        return self._answer(choices, usage_of(self._stream.records))

    def _answer(self, choices: list[CompletionChoice], usage: Usage | None | UnsetType) -> Completion:
        return Completion(id=self._call.id, created=self._call.created, model=self._model, choices=choices, usage=usage)

    def _logprobs(self, record: RequestRecord, new: list[TokenLogprobs], is_first: bool) -> CompletionLogprobs:
        entries = self._shape.entries(record, new, is_first)
        logprobs, self._offsets[record.index] = completion_logprobs(
            entries, self._shape.vocabulary, self._offsets.get(record.index, 0)
        )
        return logprobs


def completion_logprobs(entries: list[TokenLogprobs], vocabulary: Vocabulary, offset: int) -> tuple[CompletionLogprobs, int]:
    """Log-probabilities in the completions route's shape, the first at character `offset`; also the offset after them."""
    tokens, offsets = [], []
    for entry in entries:
        tokens.append(vocabulary.token_text(entry.token_id))
        offsets.append(offset)
        offset += len(tokens[-1])
    values = [entry.logprob for entry in entries]
    return CompletionLogprobs(tokens, values, [_candidates(entry, vocabulary) for entry in entries], offsets), offset


def _candidates(entry: TokenLogprobs, vocabulary: Vocabulary) -> dict[str, float] | None:
    """Candidates by text, the chosen one included; of two with the same text the second is named by its id, so none is lost."""
    if entry.logprob is None:
        return None
    found = {vocabulary.token_text(entry.token_id): entry.logprob}
    for token_id, logprob in zip(entry.top_ids, entry.top_logprobs, strict=True):
        if token_id == entry.token_id:
            continue
        text = vocabulary.token_text(token_id)
        found[text if text not in found else f"token_id:{token_id}"] = logprob
    return found


def _logprob_options(fields: CompletionFields) -> LogprobOptions:
    if fields.logprobs is None:
        return LogprobOptions()
    return LogprobOptions(output=True, top_n=fields.logprobs, prompt_start=0 if fields.echo else None)


async def _prompts(context: ServerContext, fields: CompletionFields, n: int) -> tuple[list[list[int]], list[str] | None]:
    """The ids of each prompt, and their texts where the client sent texts."""
    given: Any = fields.prompt
    if isinstance(given, str):
        given = [given]
    if fields.suffix:
        return await _fim_prompts(context, given, fields.suffix, n)
    if given and all(isinstance(item, str) for item in given):
        context.check_texts(map(len, given), n, "prompt")
        parse_special, add_special = fields.parse_special is not False, fields.add_special_tokens is not False
        pieces = ([(text, parse_special)] for text in given)
        return await context.encode_all(pieces, add_special=add_special, name="prompt"), given
    if any(isinstance(item, str) for item in given):
        raise InvalidRequest("prompt must be texts or ids, not a mixture", param="prompt")
    return split_ids(given, "prompt")[0], None


async def _fim_prompts(context: ServerContext, given: list[Any], suffix: str, n: int) -> tuple[list[list[int]], list[str]]:
    """The ids of prompts with a gap between each text and the suffix, and the texts."""
    fim = context.fim()
    if not (given and all(isinstance(item, str) for item in given)):
        raise InvalidRequest("suffix goes with a prompt of text, not with ids", param="suffix")
    context.check_texts((len(text) + len(suffix) for text in given), n, "prompt")
    pieces = (fim.pieces(text, suffix) for text in given)
    return await context.encode_all(pieces, add_special=True, name="prompt"), given


async def _echoes(context: ServerContext, call: Call, prompts: list[list[int]], texts: list[str] | None) -> list[str]:
    if texts is not None:
        return texts
    size = context.model.vocabulary.vocab_size
    for token_ids in prompts:  # decoded before they are checked as a request: an id out of range must not reach the tokenizer
        if not (min(token_ids) >= 0 and max(token_ids) < size):
            raise InvalidRequest(f"prompt: every id must be in the vocabulary (0 to {size - 1})", param="prompt")
    skip = call.params.skip_special_tokens
    decode = context.model.vocabulary.decode
    return [await asyncio.to_thread(decode, token_ids, skip_special_tokens=skip) for token_ids in prompts]
