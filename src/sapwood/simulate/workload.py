"""Who asks for what, and when: generated workloads.

Owns requests before they are submitted; knows no scheduler. Invariant: a workload is a lazy iterator in order of arrival, and the
same seed gives the same workload.

Ids need no vocabulary here: they are any int32, so that runs which should differ always do.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import inf

import numpy as np

from sapwood.core.plan import Int32Array
from sapwood.registry import Registry

VOCAB_SIZE = 2**31 - 1


@dataclass(slots=True, eq=False)
class SimRequest:
    """One request. `completion` is what it will sample (None: ids that nobody repeats), `num_new` ids in any case.

    `arrival_s` is a moment, or for a `next_turn` the pause after the end of the turn before it.
    """

    arrival_s: float
    prompt: Int32Array
    num_new: int
    completion: Int32Array | None = None
    next_turn: SimRequest | None = None
    priority: int = 0
    namespace: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadOptions:
    """Sizes of a generated workload. Lengths are means; each varies by up to the share `spread`. `rate` is arrivals per second
    (inf: all at once), as a Poisson process. `num_prefixes` prefixes of `prefix_tokens` are shared evenly; a conversation has
    `num_turns` turns with `pause_s` between them."""

    num_requests: int = 1000
    rate: float = inf
    input_tokens: int = 512
    output_tokens: int = 128
    spread: float = 0.5
    num_prefixes: int = 16
    prefix_tokens: int = 1024
    num_turns: int = 4
    pause_s: float = 2.0
    seed: int = 0


Workload = Callable[[WorkloadOptions], Iterator[SimRequest]]

workloads: Registry[Workload] = Registry("workload")


class _Draw:
    """The random numbers of one workload."""

    def __init__(self, options: WorkloadOptions) -> None:
        self._options = options
        self._chance = np.random.default_rng(options.seed)
        self._now_s = 0.0

    def arrival_s(self) -> float:
        if self._options.rate < inf:
            self._now_s += float(self._chance.exponential(1.0 / self._options.rate))
        return self._now_s

    def length(self, mean: int) -> int:
        reach = int(mean * self._options.spread)
        return max(int(self._chance.integers(mean - reach, mean + reach + 1)), 1)

    def ids(self, count: int) -> Int32Array:
        return self._chance.integers(0, VOCAB_SIZE, count, dtype=np.int32)

    def choice(self, count: int) -> int:
        return int(self._chance.integers(count))


@workloads.register("random")
def independent(options: WorkloadOptions) -> Iterator[SimRequest]:
    """Prompts that have nothing in common."""
    draw = _Draw(options)
    for _ in range(options.num_requests):
        yield SimRequest(draw.arrival_s(), draw.ids(draw.length(options.input_tokens)), draw.length(options.output_tokens))


@workloads.register("shared-prefix")
def shared_prefix(options: WorkloadOptions) -> Iterator[SimRequest]:
    """Each prompt is one of a few long prefixes, then something of its own."""
    draw = _Draw(options)
    prefixes = [draw.ids(options.prefix_tokens) for _ in range(options.num_prefixes)]
    for _ in range(options.num_requests):
        own = draw.ids(draw.length(options.input_tokens))
        prompt = np.concatenate([prefixes[draw.choice(options.num_prefixes)], own])
        yield SimRequest(draw.arrival_s(), prompt, draw.length(options.output_tokens))


@workloads.register("multi-turn")
def multi_turn(options: WorkloadOptions) -> Iterator[SimRequest]:
    """Conversations: each turn's prompt is everything said so far, and arrives a pause after the answer to the one before."""
    draw = _Draw(options)
    for first in range(0, options.num_requests, options.num_turns):
        history, turns = draw.ids(0), list[SimRequest]()
        for _ in range(min(options.num_turns, options.num_requests - first)):
            prompt = np.concatenate([history, draw.ids(draw.length(options.input_tokens))])
            completion = draw.ids(draw.length(options.output_tokens))
            turns.append(SimRequest(options.pause_s, prompt, len(completion), completion))
            history = np.concatenate([prompt, completion])
        for turn, following in zip(turns, turns[1:], strict=False):
            turn.next_turn = following
        turns[0].arrival_s = draw.arrival_s()
        yield turns[0]
