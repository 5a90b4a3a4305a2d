"""The most that any prefix cache could find of a workload, whatever its size, its policy and the order of the requests.

Pure functions over requests. Invariant: no scheduler and no cache that computes what it has not computed before finds more.

Proof. A token's keys and values depend on the token and all before it, so call such a run of tokens, from the beginning of its
namespace, a place. Whatever is found at a place was computed there earlier, by a prompt or by a completion. So of the requests
whose prompts go through a place that no completion computes, one at least computes it: the tokens that are found number at most
all prompt tokens, less one for every such place. And each request computes at least the last token of its prompt (its logits
choose the first new one): where that is not counted already, one more is lost. The last id of a completion is never computed,
because nothing was asked of it.
"""

from __future__ import annotations

from collections.abc import Iterable
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from sapwood.core.plan import Int32Array
from sapwood.simulate.workload import SimRequest

Places = NDArray[np.uint64]


def every_request(roots: Iterable[SimRequest]) -> list[SimRequest]:
    """The requests of a workload with all that wait for their answers."""
    found, stack = list[SimRequest](), list(roots)
    while stack:
        found.append(stack.pop())
        stack.extend(found[-1].then)
    return found


def largest_hit_rate(requests: Iterable[SimRequest]) -> float:
    """The bound, as a share of all prompt tokens."""
    prompts, decoded, ends = list[Places](), list[Places](), list[Places]()
    for request in requests:
        answer = request.completion if request.completion is not None else np.empty(0, np.int32)
        places = _places(np.concatenate([request.prompt, answer[: max(request.num_new - 1, 0)]]), request.namespace)
        prompts.append(places[: len(request.prompt)])
        decoded.append(places[len(request.prompt) :])
        ends.append(places[len(request.prompt) - 1 : len(request.prompt)])
    num_tokens = sum(map(len, prompts))
    computed = np.setdiff1d(np.concatenate(prompts), np.concatenate(decoded))
    last, counts = np.unique(np.concatenate(ends), return_counts=True)
    num_again = int(counts.sum()) - int(np.isin(last, computed).sum())
    return (num_tokens - len(computed) - num_again) / max(num_tokens, 1)


def _places(ids: Int32Array, namespace: str) -> Places:
    """A number for each position that stands for the run of ids up to it: equal for equal runs, and for all practical purposes
    only for those (64 bits, a sum of scrambled (id, position) pairs)."""
    positions = np.arange(1, len(ids) + 1, dtype=np.uint64)
    mixed = ids.astype(np.uint64) ^ (positions << np.uint64(32))
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        mixed = (mixed ^ (mixed >> np.uint64(shift))) * np.uint64(factor)
    start = np.uint64(crc32(namespace.encode()) << 32)
    places: Places = np.cumsum(mixed ^ (mixed >> np.uint64(31)), dtype=np.uint64) + start
    return places
