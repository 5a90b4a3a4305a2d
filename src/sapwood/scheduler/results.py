"""What a confirmed row means for its request: new ids, log-probabilities, an ending.

Owns the rules of ending on ids and lengths; does not move pages. Invariant: a request that has ended takes nothing in any more.
"""

from __future__ import annotations

from sapwood.core.plan import EngineLimits, RowRun, Steering, StepResult
from sapwood.core.request import Request
from sapwood.errors import EngineFailed, InvalidRequest, SapwoodError
from sapwood.messages.types import Finish, TokenEvent

LENGTH = Finish("length")
COMPLETE = Finish("stop")
"""A constrained completion after which nothing can follow."""
FREE = Steering()


def absorb(request: Request, row: RowRun, index: int, result: StepResult, limits: EngineLimits) -> TokenEvent | None:
    """Take in row `index` of a finished step; the event it makes, None for a prompt chunk that has nothing to tell yet."""
    end, report = row.first + row.count, request.report
    request.confirm(end)
    if index in result.prompt_logprobs and not report.is_complete:
        report.add(*result.prompt_logprobs[index])
    if not row.samples:
        if request.num_confirmed < request.num_known or request.max_len > request.num_prompt:
            return None
        return make_event(request, finish=LENGTH, vector=result.vectors.get(index, b""))
    token_id, steering = result.token_ids[index], result.steering.get(index, FREE) if result.steering else FREE
    if steering.error:
        return make_event(request, finish=error_finish(InvalidRequest(steering.error)))
    if not 0 <= token_id < limits.vocab_size:
        return make_event(request, finish=_broken(token_id))
    num_before = request.num_completion  # more than the row's position says when this id was forced by an earlier one
    num_here = num_before - (end - request.num_prompt)
    if not num_here and not steering.forced:  # one id, as nearly always
        request.append(token_id)
        new_ids, finish = [token_id], _ending(request, token_id, num_before, limits)
    else:
        new_ids, finish = _extend(request, [token_id, *steering.forced][num_here:], limits)
    if finish is None and steering.is_complete:
        finish = COMPLETE
    if not new_ids and finish is None:
        return None
    return TokenEvent(
        request.number,
        num_before,
        new_ids,
        finish,
        request.num_cached,
        request.num_retractions,
        [result.logprobs[index]] if request.logprobs.output else None,
        None if report.is_sent else report.take(),
        None if num_before else request.queue_s,
        request.cached_below,
    )


def _extend(request: Request, token_ids: list[int], limits: EngineLimits) -> tuple[list[int], Finish | None]:
    """Append ids up to one that ends the request: the ids that were appended, and how it ended."""
    for count, token_id in enumerate(token_ids, 1):
        request.append(token_id)
        finish = _ending(request, token_id, request.num_completion - 1, limits)
        if finish is not None:
            return token_ids[:count], finish
    return token_ids, None


def make_event(request: Request, *, finish: Finish | None, vector: bytes = b"") -> TokenEvent:
    """An event without new ids."""
    return TokenEvent(
        request.number,
        request.num_completion,
        [],
        finish,
        max(request.num_cached, 0),
        request.num_retractions,
        prompt_logprobs=request.report.take(),
        cached_below=request.cached_below,
        queue_s=None if request.num_completion else request.queue_s,
        vector=vector,
    )


def error_finish(error: SapwoodError) -> Finish:
    """The ending of a request that `error` befell."""
    return Finish("error", None, error.message, error.status, error.code)


def _broken(token_id: int) -> Finish:
    message = f"the model produced the impossible token id {token_id}; try again, and report it if it happens again"
    return error_finish(EngineFailed(message))


def _ending(request: Request, token_id: int, position: int, limits: EngineLimits) -> Finish | None:
    """How completion token `position` ends the request, if it does.

    `ignore_eos` turns off both the model's end-of-sequence ids and `stop_token_ids`, as SGLang does. An id that ends the request
    says more than reaching the length at the same time, so it is looked at first.
    """
    params = request.params
    ends = token_id in limits.eos_token_ids or token_id in params.stop_token_ids
    if ends and not params.ignore_eos and position >= params.min_new_tokens:
        return Finish("stop", token_id)
    return LENGTH if request.num_prompt + position + 1 >= request.max_len else None
