"""Prompts of token ids for measurements: the generators of `simulate`, brought into a vocabulary.

Owns which ids are drawn; knows no engine. Invariant: the same options give the same prompts, and ids below `FIRST_ID`, where
control tokens tend to lie, do not occur in a vocabulary that has others.
"""

from __future__ import annotations

import numpy as np

from sapwood.core.plan import Int32Array
from sapwood.errors import ConfigError
from sapwood.simulate.workload import WorkloadOptions, workloads

FIRST_ID = 256
ID_WORKLOADS = ("random", "shared-prefix", "few-shot")
"""Workloads whose prompts do not wait for answers."""


def draw_ids(chance: np.random.Generator, count: int, vocab_size: int) -> Int32Array:
    """`count` ids."""
    return into_vocabulary(chance.integers(0, 2**31 - 1, count, dtype=np.int32), vocab_size)


def into_vocabulary(numbers: Int32Array, vocab_size: int) -> Int32Array:
    """Any numbers as ids of a vocabulary; equal ones stay equal."""
    first = FIRST_ID if vocab_size > 2 * FIRST_ID else 0
    ids: Int32Array = (first + numbers % (vocab_size - first)).astype(np.int32)
    return ids


def draw_prompts(name: str, options: WorkloadOptions, vocab_size: int) -> list[tuple[Int32Array, int]]:
    """Prompts with how many tokens each is to be continued by; raises ConfigError for a workload that is not made of ids."""
    if name not in ID_WORKLOADS:
        raise ConfigError(f"there is no workload {name!r} here; take one of {', '.join(ID_WORKLOADS)}", param="workload")
    return [(into_vocabulary(request.prompt, vocab_size), request.num_new) for request in workloads.get(name)(options)]
