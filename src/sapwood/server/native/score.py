"""`/v1/score`, `/v1/rerank` and `/v1/ranking`: how well texts go with a query, by whatever model is served.

A classifier gives its classes' scores for the pair, an embedding model the cosine, a model that makes text the probabilities of
label tokens (score) or of "yes" against "no" (rerank). Runs nothing itself. Invariant: every item gets its score, in the order
of the items; rankings are sorted by it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
from fastapi import APIRouter, Request, Response

from sapwood.core.pooling import Task
from sapwood.errors import InvalidRequest
from sapwood.server.body import Decoder, as_list, make_refusals, refuse
from sapwood.server.context import ServerContext
from sapwood.server.native.schema import Ids, Int64
from sapwood.server.record import RequestRecord
from sapwood.server.scoring import class_probabilities, judge_messages, label_scores, relevance_logit, sigmoid, unit
from sapwood.server.sse import json_response
from sapwood.server.vectors import CallFacts, ask_logprobs, ask_vectors, check_count, read_inputs, read_pairs, vector_of
from sapwood.tokenizer.chat import ChatOptions


class TextPart(msgspec.Struct):
    """A text, as NVIDIA's ranking route has it."""

    text: str


class ScoreFields(msgspec.Struct, kw_only=True):
    """The body of `/v1/score`. The items are texts, or ids when the query is ids; `label_token_ids` are for models of text."""

    query: str | Ids
    items: str | list[str | Ids]
    label_token_ids: Ids | None = None
    apply_softmax: bool | None = None
    item_first: bool | None = None
    model: str | None = None


class RerankFields(msgspec.Struct, kw_only=True):
    """The body of `/v1/rerank`. `instruct` tells models of text what relevant means."""

    query: str
    documents: list[str | TextPart]
    top_n: Int64 | None = None
    return_documents: bool | None = None
    instruct: str | None = None
    model: str | None = None


class RankingFields(msgspec.Struct, kw_only=True):
    """The body of `/v1/ranking`, as NVIDIA's rerankers take it."""

    query: str | TextPart
    passages: list[str | TextPart]
    model: str | None = None
    truncate: str | None = None


_score_fields: Decoder[ScoreFields] = Decoder(ScoreFields)
_rerank_fields: Decoder[RerankFields] = Decoder(RerankFields)
_ranking_fields: Decoder[RankingFields] = Decoder(RankingFields)
_refusals = Decoder(make_refusals("ScoreRefusals", ("score_extraction_token", "return_token_logprobs", "temperature")))


@dataclass(frozen=True, slots=True)
class Relevance:
    """How relevant one document is: `score` to sort by, `logit` as rankers without an activation give it."""

    score: float
    logit: float
    num_tokens: int


def score_routes(context: ServerContext) -> APIRouter:
    """The router of this family."""
    router = APIRouter(tags=["embeddings"])

    async def score(request: Request) -> Response:
        data = await context.read(request)
        fields = _score_fields.decode(data)
        refuse(_refusals.decode(data))
        context.check_model(fields.model)
        scores, count = await _scores(context, request, fields)
        usage = {"prompt_tokens": count, "completion_tokens": 0, "total_tokens": count}
        return json_response({"scores": scores, "model": context.model.name, "usage": usage, "object": "scoring"})

    async def rerank(request: Request) -> Response:
        fields = await context.body(request, _rerank_fields)
        context.check_model(fields.model)
        documents = [_text(document) for document in fields.documents]
        if fields.top_n is not None and fields.top_n < 1:
            raise InvalidRequest(f"top_n must be at least 1, got {fields.top_n}", param="top_n")
        found = await _rank(context, request, (fields.query, documents, fields.instruct), "documents")
        ranking = sorted(range(len(found)), key=lambda index: -found[index].score)[: fields.top_n]
        shown = fields.return_documents is not False
        return json_response([_entry(index, found[index], documents[index] if shown else None) for index in ranking])

    async def rank(request: Request) -> Response:
        fields = await context.body(request, _ranking_fields)
        context.check_model(fields.model)
        passages = [_text(passage) for passage in fields.passages]
        found = await _rank(context, request, (_text(fields.query), passages, None), "passages")
        ranking = sorted(range(len(found)), key=lambda index: -found[index].score)
        return json_response({"rankings": [{"index": index, "logit": found[index].logit} for index in ranking]})

    router.add_api_route("/v1/score", score, methods=["POST"], summary="Scores of items against a query")
    router.add_api_route("/v1/rerank", rerank, methods=["POST"], summary="Documents in the order of their relevance")
    router.add_api_route("/v1/rerank", rerank, methods=["PUT"], include_in_schema=False)
    router.add_api_route("/rerank", rerank, methods=["POST"], include_in_schema=False)
    router.add_api_route("/v1/ranking", rank, methods=["POST"], summary="The same, as NVIDIA's rerankers answer")
    return router


async def _scores(context: ServerContext, request: Request, fields: ScoreFields) -> tuple[list[list[float]], int]:
    """One list of scores for each item, and how many prompt tokens that took."""
    items = as_list(fields.items)
    if not items:
        raise InvalidRequest("items must not be empty; send at least one", param="items")
    is_text = isinstance(fields.query, str)
    if any(isinstance(item, str) != is_text for item in items):
        raise InvalidRequest("query and items must all be texts, or all be ids", param="items")
    if context.frontend.limits.task is Task.GENERATE:
        return await _label_scores(context, request, fields, items)
    if not is_text:
        raise InvalidRequest("this model takes the query and the items as texts, not as ids", param="query")
    if context.frontend.limits.task is Task.EMBED:
        cosines, count = await _cosines(context, request, str(fields.query), items, "items")
        return [[cosine] for cosine in cosines], count
    records = await _pairs(context, request, str(fields.query), items, "items")
    vectors = [vector_of(record) for record in records]
    scores = [class_probabilities(vector) if fields.apply_softmax else vector.tolist() for vector in vectors]
    return scores, _num_tokens(records)


async def _label_scores(
    context: ServerContext, request: Request, fields: ScoreFields, items: list[Any]
) -> tuple[list[list[float]], int]:
    if not fields.label_token_ids:
        raise InvalidRequest("label_token_ids is missing; name the tokens to score", param="label_token_ids")
    pairs: list[Any] = [(item, fields.query) if fields.item_first else (fields.query, item) for item in items]
    prompts = [[*first, *second] for first, second in pairs if not isinstance(first, str)]
    if not prompts:
        context.check_texts((len(first) + len(second) for first, second in pairs), None, "items")
        prompts = [await context.encode([(first + second, True)], add_special=True, name="items") for first, second in pairs]
    found = await ask_logprobs(context, request, prompts, fields.label_token_ids, "items")
    softmaxed = bool(fields.apply_softmax)
    return [label_scores(logprobs, softmaxed) for logprobs in found], sum(map(len, prompts))


async def _rank(
    context: ServerContext, request: Request, asked: tuple[str, Sequence[str], str | None], name: str
) -> list[Relevance]:
    """How relevant each document is to the query, by the kind of model that is served."""
    query, documents, instruction = asked
    check_count(len(documents), name)
    match context.frontend.limits.task:
        case Task.GENERATE:
            return await _judge(context, request, [judge_messages(query, text, instruction) for text in documents])
        case Task.EMBED:
            cosines, count = await _cosines(context, request, query, documents, name)
            return [Relevance(cosine, cosine, count // len(cosines)) for cosine in cosines]
        case Task.CLASSIFY:
            records = await _pairs(context, request, query, documents, name)
            logits = [relevance_logit(vector_of(record)) for record in records]
            return [Relevance(sigmoid(logit), logit, r.num_prompt) for logit, r in zip(logits, records, strict=True)]


async def _judge(context: ServerContext, request: Request, conversations: list[list[dict[str, str]]]) -> list[Relevance]:
    """Ask a model of text for yes or no."""
    render = context.model.render_chat
    if render is None:
        raise InvalidRequest("this model has no chat template to ask for relevance with; serve a reranker", param="model")
    context.check_texts([len(messages[1]["content"]) for messages in conversations], None, "documents")
    pieces = [render([dict(message) for message in messages], ChatOptions()) for messages in conversations]
    prompts = [await context.encode(one, add_special=False, name="documents") for one in pieces]
    words = [await context.encode([(word, False)], add_special=False, name="documents") for word in ("yes", "no")]
    if any(len(ids) != 1 for ids in words):
        raise InvalidRequest("this model's vocabulary does not have yes and no as tokens; serve a reranker", param="model")
    found = await ask_logprobs(context, request, prompts, [ids[0] for ids in words], "documents")
    return [Relevance(sigmoid(yes - no), yes - no, len(prompt)) for (yes, no), prompt in zip(found, prompts, strict=True)]


async def _cosines(
    context: ServerContext, request: Request, query: str, items: Sequence[str], name: str
) -> tuple[list[float], int]:
    """The cosine of each item's embedding with the query's."""
    asked, _ = await read_inputs(context, [query, *items], name, truncate=context.settings.allow_auto_truncate)
    records = await ask_vectors(context, request, asked, CallFacts(name))
    first, *others = [unit(vector_of(record)) for record in records]
    return [float(first @ other) for other in others], _num_tokens(records)


async def _pairs(context: ServerContext, request: Request, query: str, items: Sequence[str], name: str) -> list[RequestRecord]:
    asked = await read_pairs(context, query, items, ("query", name))
    return await ask_vectors(context, request, asked, CallFacts(name))


def _num_tokens(records: list[RequestRecord]) -> int:
    return sum(record.num_prompt for record in records)


def _text(part: str | TextPart) -> str:
    return part.text if isinstance(part, TextPart) else part


def _entry(index: int, found: Relevance, document: str | None) -> dict[str, Any]:
    entry: dict[str, Any] = {"score": found.score, "index": index, "meta_info": {"prompt_tokens": found.num_tokens}}
    return entry if document is None else {**entry, "document": document}
