"""Generated workloads whose prompts contain earlier answers: conversations, agents, problems that are thought through.

Owns which request waits for which; knows no scheduler. Invariant: what waits for an answer begins with the prompt and completion
of the request that gives it, and a workload has exactly as many requests as were asked for.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from sapwood.core.plan import Int32Array
from sapwood.simulate.workload import Draw, SimRequest, WorkloadOptions, workloads

NUM_BRANCHES = 3
BRANCH_TOKENS = 16
"""Tokens that tell one branch from its siblings."""


@workloads.register("multi-turn")
def multi_turn(options: WorkloadOptions) -> Iterator[SimRequest]:
    """Conversations: each turn's prompt is everything said so far, and arrives a pause after the answer to the one before."""
    draw = Draw(options)
    for first in range(0, options.num_requests, options.num_turns):
        yield _chain(draw, options, draw.ids(0), min(options.num_turns, options.num_requests - first))


@workloads.register("agents")
def agents(options: WorkloadOptions) -> Iterator[SimRequest]:
    """Agents that call tools: a long description, which all of a kind share, then in each turn the result of the last call."""
    draw = Draw(options)
    kinds = [draw.ids(options.prefix_tokens) for _ in range(options.num_prefixes)]
    for first in range(0, options.num_requests, options.num_turns):
        kind = kinds[draw.choice(options.num_prefixes)]
        yield _chain(draw, options, kind, min(options.num_turns, options.num_requests - first))


@workloads.register("tree-of-thought")
def tree_of_thought(options: WorkloadOptions) -> Iterator[SimRequest]:
    """Problems under one instruction: at each depth several thoughts, of which the best is thought on from as soon as it is
    there. The thoughts at the first depth arrive together."""
    draw = Draw(options)
    instruction = draw.ids(options.prefix_tokens)
    num_left = options.num_requests
    while num_left:
        arrival_s = draw.arrival_s()
        path = np.concatenate([instruction, draw.ids(draw.length(options.input_tokens))])
        siblings = first = _branches(draw, options, path, min(NUM_BRANCHES, num_left))
        num_left -= len(siblings)
        for _ in range(1, options.num_turns):
            if not num_left:
                break
            best = siblings[draw.choice(len(siblings))]
            siblings = best.then = _branches(draw, options, _history(best), min(NUM_BRANCHES, num_left))
            num_left -= len(siblings)
        for request in first:
            request.arrival_s = arrival_s
            yield request


def _chain(draw: Draw, options: WorkloadOptions, history: Int32Array, num_turns: int) -> SimRequest:
    """The first of so many turns after a history."""
    turns = list[SimRequest]()
    for _ in range(num_turns):
        turns.append(_ask(draw, options, np.concatenate([history, draw.ids(draw.length(options.input_tokens))])))
        history = _history(turns[-1])
    for turn, following in zip(turns, turns[1:], strict=False):
        turn.then.append(following)
    turns[0].arrival_s = draw.arrival_s()
    return turns[0]


def _branches(draw: Draw, options: WorkloadOptions, path: Int32Array, count: int) -> list[SimRequest]:
    """Several ways to go on from a path."""
    return [_ask(draw, options, np.concatenate([path, draw.ids(BRANCH_TOKENS)])) for _ in range(count)]


def _ask(draw: Draw, options: WorkloadOptions, prompt: Int32Array) -> SimRequest:
    completion = draw.ids(draw.length(options.output_tokens))
    return SimRequest(options.pause_s, prompt, len(completion), completion)


def _history(request: SimRequest) -> Int32Array:
    """Everything said up to a request's answer."""
    assert request.completion is not None
    return np.concatenate([request.prompt, request.completion])
