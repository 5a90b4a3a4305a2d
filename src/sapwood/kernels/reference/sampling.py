"""Choosing tokens from logits: pure functions over a batch of rows, float32 [S, V]; the specification of every faster twin.

Does not know slots, requests or steps. Invariant: each row's result depends on that row and its own settings alone, to the bit
on the CPU, whoever shares the batch; ties always fall to the lowest id.

The order of operations on a row x of logits, c being how often each id occurs in the completion so far:

    1. penalties     where c > 0: x -= frequency * c;  x -= presence;  x = x / repetition if x > 0 else x * repetition
    2. logit bias    x[id] += bias
    3. masks         x = -inf for ids that must not come (min_new_tokens, a grammar)
    4. greedy        argmax(x); otherwise p = softmax((x - max x) / temperature), in float32
    5. top-k         the k largest x stay
    6. top-p         of these, the shortest prefix in descending order whose mass reaches top_p of the mass top-k left
                     (without top-k that mass is 1)
    7. min-p         of these, ids with p >= min_p * max p
    8. inverse CDF   the first id whose cumulative p (float64, summed in order) exceeds u * (total that is left)

Rows with top-k or top-p are walked by descending x, ties by ascending id; other rows by ascending id, so nothing is sorted
for them. u is one uniform number per row: see `uniforms`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2 = np.uint64(0x94D049BB133111EB)
_CANDIDATES = (256, 2048, 16384)  # how many top-p looks at before it sorts all: a trained model's nucleus is nearly always small
_TIE_MARGIN = 32  # candidates beyond the k-th, so that equal values at the border rarely force a full sort


class Purpose(IntEnum):
    """What a random number is for; numbers of different purposes are independent."""

    TOKEN = 0


# ---------------------------------------------------------------------------------------------------- random numbers
def _mix(word: NDArray[np.uint64]) -> NDArray[np.uint64]:
    word = (word ^ (word >> np.uint64(30))) * _MIX_1
    word = (word ^ (word >> np.uint64(27))) * _MIX_2
    return word ^ (word >> np.uint64(31))


def uniforms(
    seeds: NDArray[np.uint64], sample_indices: NDArray[Any], positions: NDArray[Any], purpose: Purpose = Purpose.TOKEN
) -> NDArray[np.float64]:
    """One number in [0, 1) per row, a pure function of (seed, sample index, position, purpose); float64 [S].

    All arithmetic is on unsigned 64-bit words modulo 2**64; signed words count as their two's complement:

        mix(z):  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9;  z = (z ^ (z >> 27)) * 0x94D049BB133111EB;  return z ^ (z >> 31)
        h = 0;   for word in (seed, sample_index, position, purpose):  h = mix(h + 0x9E3779B97F4A7C15 + word)
        u = (h >> 11) * 2**-53
    """
    state = np.zeros(len(seeds), dtype=np.uint64)
    for words in (seeds, sample_indices, positions, np.full(len(seeds), int(purpose))):
        state = _mix(state + _GOLDEN + words.astype(np.uint64))
    return (state >> np.uint64(11)).astype(np.float64) * 2.0**-53


# ---------------------------------------------------------------------------------------------------- steering the logits
def penalise_(
    logits: Tensor, token_ids: Tensor, counted: Tensor, frequency: Tensor, presence: Tensor, repetition: Tensor
) -> None:
    """Apply the three penalties in place.

    `token_ids` int64 [S, L] with `counted` bool [S, L] lists each row's completion (entries not counted may hold anything);
    the penalties are float32 [S].
    """
    ids = torch.where(counted, token_ids, 0)
    counts = torch.zeros_like(logits).scatter_add_(1, ids, counted.to(logits.dtype))
    # Only ids that occur are touched. Repeated ids (and id 0, which stands for the uncounted) write equal values.
    count = counts.gather(1, ids)
    seen = count > 0
    value = logits.gather(1, ids)
    value = value - frequency[:, None] * count
    value = value - presence[:, None] * seen
    scaled = torch.where(value > 0, value / repetition[:, None], value * repetition[:, None])
    logits.scatter_(1, ids, torch.where(seen, scaled, value))


def add_bias_(logits: Tensor, rows: Tensor, token_ids: Tensor, biases: Tensor) -> None:
    """Add `biases[i]` (float32) to the logit of `token_ids[i]` in row `rows[i]` (int64, pairs distinct), in place."""
    logits.view(-1).index_add_(0, rows * logits.shape[1] + token_ids, biases)


def forbid_(logits: Tensor, rows: Tensor, token_ids: Tensor) -> None:
    """Set the logit of `token_ids[i]` in row `rows[i]` (int64) to -inf, in place."""
    logits.view(-1).index_fill_(0, rows * logits.shape[1] + token_ids, -torch.inf)


# ---------------------------------------------------------------------------------------------------- choosing
@dataclass(frozen=True, slots=True)
class RowSettings:
    """How each row is sampled; contiguous host arrays [S].

    `temperature` 0 means greedy, `top_k` >= V and `top_p` 1 mean no filter.
    """

    temperature: NDArray[np.float32]
    top_k: NDArray[np.int64]
    top_p: NDArray[np.float64]
    min_p: NDArray[np.float32]
    uniform: NDArray[np.float64]

    def take(self, rows: NDArray[np.int64]) -> RowSettings:
        """The settings of some rows."""
        return RowSettings(self.temperature[rows], self.top_k[rows], self.top_p[rows], self.min_p[rows], self.uniform[rows])


def choose(logits: Tensor, settings: RowSettings) -> Tensor:
    """The chosen id of every row, int64 [S] on the logits' device. A row without any finite logit yields a legal id."""
    vocab_size = logits.shape[1]
    greedy = settings.temperature == 0.0
    if greedy.all():
        return logits.argmax(dim=-1)
    ordered = ~greedy & ((settings.top_k < vocab_size) | (settings.top_p < 1.0))
    chosen = torch.empty(logits.shape[0], dtype=torch.int64, device=logits.device)
    groups: tuple[tuple[NDArray[np.bool_], Callable[[Tensor, RowSettings], Tensor]], ...] = (
        (greedy, lambda rows, _: rows.argmax(dim=-1)),
        (ordered, _choose_by_rank),
        (~greedy & ~ordered, _choose_by_id),
    )
    for member, how in groups:
        if member.all():
            return how(logits, settings)
        if member.any():
            rows = np.flatnonzero(member)
            index = _on(logits, rows)
            chosen[index] = how(logits.index_select(0, index), settings.take(rows))
    return chosen


def _on(like: Tensor, array: NDArray[Any]) -> Tensor:
    """A host array as a tensor on the device of `like`."""
    return torch.from_numpy(array).to(like.device, non_blocking=True)


def _probabilities(logits: Tensor, settings: RowSettings) -> Tensor:
    """Softmax at each row's temperature. Shifting before dividing keeps huge logits over tiny temperatures finite."""
    highest = logits.amax(dim=-1, keepdim=True)
    return torch.softmax((logits - highest) / _on(logits, settings.temperature)[:, None], dim=-1)


def _choose_by_id(logits: Tensor, settings: RowSettings) -> Tensor:
    """Rows without top-k and top-p: walk the ids in ascending order."""
    probs = _probabilities(logits, settings)
    if settings.min_p.any():
        floor = probs.amax(dim=-1, keepdim=True) * _on(logits, settings.min_p)[:, None]
        probs = torch.where(probs >= floor, probs, 0.0)
    cumulative = probs.cumsum(dim=-1, dtype=torch.float64)
    target = cumulative[:, -1:] * _on(logits, settings.uniform)[:, None]
    found = torch.searchsorted(cumulative, target, right=True).squeeze(1)
    return found.clamp_(max=logits.shape[1] - 1)


def _choose_by_rank(logits: Tensor, settings: RowSettings) -> Tensor:
    """Rows with top-k or top-p: walk a bounded list of the best candidates, longer only for rows whose nucleus is."""
    vocab_size = logits.shape[1]
    probs = _probabilities(logits, settings)
    unlimited = settings.top_k >= vocab_size
    longest = int(settings.top_k[~unlimited].max(initial=1))
    widths = [max(longest, width) for width in (*_CANDIDATES, vocab_size)] if unlimited.any() else [longest]
    chosen = torch.empty(logits.shape[0], dtype=torch.int64, device=logits.device)
    rows = np.arange(logits.shape[0])
    for width in widths:
        width = min(width, vocab_size)
        index = _on(logits, rows)
        ids, complete = _pick(logits.index_select(0, index), probs.index_select(0, index), settings.take(rows), width)
        chosen[index] = ids
        if width == vocab_size or not unlimited[rows].any():
            break
        rows = rows[unlimited[rows] & ~complete.cpu().numpy()]
        if not len(rows):
            break
    return chosen


def _pick(logits: Tensor, probs: Tensor, settings: RowSettings, width: int) -> tuple[Tensor, Tensor]:
    """Sample among the `width` best ids of each row; second, whether the filters ended inside that list (bool [S])."""
    vocab_size = logits.shape[1]
    _, ids = best(logits, width)
    prob = probs.gather(1, ids)
    cumulative = prob.cumsum(dim=-1, dtype=torch.float64)
    before = torch.nn.functional.pad(cumulative, (1, 0))[:, :-1]
    top_k = _on(logits, np.minimum(settings.top_k, width))[:, None]
    mass = torch.where(_on(logits, settings.top_k < vocab_size)[:, None], cumulative.gather(1, top_k - 1), 1.0)
    reach = _on(logits, np.where(settings.top_p < 1.0, settings.top_p, np.inf))[:, None] * mass
    rank = torch.arange(width, device=logits.device)
    kept = (rank < top_k) & (before < reach) & (prob >= prob[:, :1] * _on(logits, settings.min_p)[:, None])
    count = kept.sum(dim=-1, keepdim=True).clamp_(min=1)  # `kept` is a prefix: each of its conditions fails for good
    target = cumulative.gather(1, count - 1) * _on(logits, settings.uniform)[:, None]
    place = (cumulative <= target).sum(dim=-1, keepdim=True)
    return ids.gather(1, torch.minimum(place, count - 1)).squeeze(1), count.squeeze(1) < width


def best(values: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """The k largest entries of each row in descending order, ties by ascending id: (values, int64 ids), both [S, k].

    Looks at a few more than k; a row whose ties might reach beyond them is sorted in full.
    """
    size = values.shape[1]
    width = min(k + _TIE_MARGIN, size)
    if width == size:
        ordered, ids = torch.sort(values, dim=-1, descending=True, stable=True)
        return ordered[:, :k], ids[:, :k]
    found, ids = torch.topk(values, width, dim=-1)
    ids, by_id = ids.sort(dim=-1)
    found, by_value = torch.sort(found.gather(1, by_id), dim=-1, descending=True, stable=True)
    ids = ids.gather(1, by_value)
    # An entry equal to the last one seen may have unseen equals with lower ids (-inf stands for "never" and has no order).
    last = found[:, -1]
    doubtful = ((found[:, k - 1] == last) & (last > -torch.inf)).nonzero().squeeze(1)
    found, ids = found[:, :k].contiguous(), ids[:, :k].contiguous()
    if len(doubtful):
        exact, exact_ids = torch.sort(values.index_select(0, doubtful), dim=-1, descending=True, stable=True)
        found[doubtful], ids[doubtful] = exact[:, :k], exact_ids[:, :k]
    return found, ids


# ---------------------------------------------------------------------------------------------------- reporting
def log_probabilities(logits: Tensor) -> Tensor:
    """Natural log-softmax of each row, float32 [S, V]; the logits must be the model's own, before any steering."""
    return torch.log_softmax(logits, dim=-1)
