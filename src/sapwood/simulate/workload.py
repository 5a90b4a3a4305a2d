"""Who asks for what, and when: generated workloads.

Owns requests before they are submitted; knows no scheduler. Invariant: a workload is a lazy iterator in order of arrival, and the
same seed gives the same workload.

Ids need no vocabulary here: they are any int32, so that runs which should differ always do.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from math import inf

import numpy as np

from sapwood.core.plan import Int32Array
from sapwood.registry import Registry

VOCAB_SIZE = 2**31 - 1
BURST = 8
"""Questions of one task come in runs of at most so many."""


@dataclass(slots=True, eq=False)
class SimRequest:
    """One request. `completion` is what it will sample (None: ids that nobody repeats), `num_new` ids in any case.

    `then` are the requests that wait for its answer: their prompts begin with its prompt and completion, and their `arrival_s` is
    not a moment but the pause after its end.
    """

    arrival_s: float
    prompt: Int32Array
    num_new: int
    completion: Int32Array | None = None
    then: list[SimRequest] = field(default_factory=list)
    priority: int = 0
    namespace: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadOptions:
    """Sizes of a generated workload. Lengths are means; each varies by up to the share `spread`. `rate` is arrivals per second
    (inf: all at once), as a Poisson process. `num_prefixes` prefixes of `prefix_tokens` are shared evenly; a conversation, an
    agent or a problem has `num_turns` turns with `pause_s` between them. `num_requests` counts every turn."""

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


class Draw:
    """The random numbers of one workload: moments of arrival, lengths around a mean, ids, choices."""

    def __init__(self, options: WorkloadOptions) -> None:
        self._options = options
        self._chance = np.random.default_rng(options.seed)
        self._now_s = 0.0

    def arrival_s(self) -> float:
        """The next moment of arrival."""
        if self._options.rate < inf:
            self._now_s += float(self._chance.exponential(1.0 / self._options.rate))
        return self._now_s

    def length(self, mean: int) -> int:
        """A number of tokens."""
        reach = int(mean * self._options.spread)
        return max(int(self._chance.integers(mean - reach, mean + reach + 1)), 1)

    def ids(self, count: int) -> Int32Array:
        """Ids that nobody drew before."""
        return self._chance.integers(0, VOCAB_SIZE, count, dtype=np.int32)

    def choice(self, count: int) -> int:
        """A number below `count`."""
        return int(self._chance.integers(count))


@workloads.register("random")
def independent(options: WorkloadOptions) -> Iterator[SimRequest]:
    """Prompts that have nothing in common."""
    draw = Draw(options)
    for _ in range(options.num_requests):
        yield SimRequest(draw.arrival_s(), draw.ids(draw.length(options.input_tokens)), draw.length(options.output_tokens))


@workloads.register("shared-prefix")
def shared_prefix(options: WorkloadOptions) -> Iterator[SimRequest]:
    """Each prompt is one of a few long prefixes, then something of its own."""
    draw = Draw(options)
    prefixes = [draw.ids(options.prefix_tokens) for _ in range(options.num_prefixes)]
    for _ in range(options.num_requests):
        own = draw.ids(draw.length(options.input_tokens))
        prompt = np.concatenate([prefixes[draw.choice(options.num_prefixes)], own])
        yield SimRequest(draw.arrival_s(), prompt, draw.length(options.output_tokens))


@workloads.register("few-shot")
def few_shot(options: WorkloadOptions) -> Iterator[SimRequest]:
    """Questions under the examples of a few tasks, in bursts of one task."""
    draw = Draw(options)
    tasks = [draw.ids(draw.length(options.prefix_tokens)) for _ in range(options.num_prefixes)]
    task = 0
    for index in range(options.num_requests):
        if index % BURST == 0 or not draw.choice(BURST):
            task = draw.choice(options.num_prefixes)
        prompt = np.concatenate([tasks[task], draw.ids(draw.length(options.input_tokens))])
        yield SimRequest(draw.arrival_s(), prompt, draw.length(options.output_tokens))
