"""A model without weights: what follows a token prefix is a table-driven function of a hash of that prefix.

Owns the hashes and the distribution over next tokens; does not know slots, pages or steps. Invariant: everything depends on the
ids before a position (and, above temperature 0, on seed, sample index and position) and on nothing else.

The vocabulary is the 256 bytes and a few special ids, so a byte tokenizer fits on top; text reads like words of lower-case
letters.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import log

import numpy as np
from numpy.typing import NDArray

from sapwood.core.plan import EngineLimits
from sapwood.core.pooling import Pooling
from sapwood.core.sampling import LogprobOptions, SamplingParams, TokenLogprobs

UInt64Array = NDArray[np.uint64]
UInt32Array = NDArray[np.uint32]

EOS_ID = 258
VOCAB_SIZE = 259
VECTOR_SIZE = 16

_LETTERS = b"etaoin shrdlu cmfwyp gbvkjxqz, ."
_NUM_RANKS = len(_LETTERS)  # a few of them spaces, which makes words; in a ranking each id counts once
_STRIDE = 7  # coprime to the number of letters, so that ranks run through all of them
_MASK = (1 << 64) - 1
_LOG_HALF = log(0.5)
_UNLIKELY = -80.0


def null_limits(
    num_slots: int = 64, max_len: int = 4096, num_pages: int = 4096, page_size: int = 16, vocab_size: int = VOCAB_SIZE
) -> EngineLimits:
    """Limits of a null engine; its pool costs eight bytes per token."""
    return EngineLimits(num_slots, max_len, num_pages, page_size, vocab_size, (EOS_ID,))


def mix(values: UInt64Array) -> UInt64Array:
    """Scramble 64-bit values (the finaliser of splitmix64), so that neighbours have nothing in common."""
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))


def mix_int(value: int) -> int:
    """`mix` of one Python integer."""
    value &= _MASK
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK
    return value ^ (value >> 31)


@dataclass(frozen=True, slots=True)
class Draw:
    """What chooses among a position's candidates. `temperature` 0 takes the best."""

    temperature: float
    seed: int
    sample_index: int
    position: int


class NullModel:
    """The pure function behind the null engine. `eos_probability` is the chance that a prefix ends."""

    def __init__(self, max_len: int, vocab_size: int = VOCAB_SIZE, eos_probability: float = 0.02) -> None:
        self._id_hashes = mix(np.arange(1, vocab_size + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15))
        self._salts = mix(np.arange(1, max_len + 2, dtype=np.uint64) * np.uint64(0xD1342543DE82EF95)) | np.uint64(1)
        self._eos_below = int(eos_probability * (1 << 32))

    def content(self, ids: NDArray[np.int32], first: int = 0) -> UInt64Array:
        """The KV rows of positions [first, len(ids)): each one hashes its whole prefix. uint64 [len(ids) - first]."""
        return mix(np.cumsum(self._id_hashes[ids] * self._salts[: len(ids)])[first:])

    def contexts(self, content: UInt64Array, first: int) -> list[int]:
        """What attention over the KV rows [0, p] sees, for p in [first, len(content)); one 64-bit value each."""
        weighted = content * self._salts[: len(content)]
        if first == len(content) - 1:
            return [mix_int(int(weighted.sum()))]
        values: list[int] = mix(np.cumsum(weighted)[first:]).tolist()
        return values

    def ranked(self, context: int, count: int) -> list[int]:
        """The `count` most probable next ids, best first; rank r has probability 2^-(r+1)."""
        head = [EOS_ID] if (context & 0xFFFFFFFF) < self._eos_below else []
        start = (context >> 32) % _NUM_RANKS
        letters = (_LETTERS[(start + rank * _STRIDE) % _NUM_RANKS] for rank in range(_NUM_RANKS))
        return [*head, *dict.fromkeys(letters)][:count]

    def choose(
        self, context: int, params: SamplingParams, draw: Draw, num_completion: int, mask: UInt32Array | None = None
    ) -> int:
        """The next id: the best that may come, or above temperature 0 one drawn from the candidates by a keyed hash.

        Ends are kept back until `min_new_tokens`; penalties, biases and the other filters do nothing in this model. Of what a
        `mask` (one bit per id) allows, the candidates that would have come anyway are preferred.
        """
        candidates = self.ranked(context, _NUM_RANKS)
        if num_completion < params.min_new_tokens:
            candidates = [token for token in candidates if token != EOS_ID and token not in params.stop_token_ids] or candidates
        if mask is not None:
            candidates = _allowed(candidates, mask, context)
        if draw.temperature == 0.0:
            return candidates[0]
        key = mix_int(mix_int(mix_int(context ^ draw.seed) + draw.sample_index) + draw.position)
        rank = (key & -key).bit_length() - 1 if key else 63  # trailing zeros: rank r with probability 2^-(r+1)
        return candidates[min(rank, len(candidates) - 1)]

    def logprobs(self, context: int, token_id: int, options: LogprobOptions) -> TokenLogprobs:
        """Log-probabilities of the model itself (before temperature and seed) at one position."""
        ranking = self.ranked(context, _NUM_RANKS)
        top_ids = ranking[: options.top_n]
        top = [_rank_logprob(rank) for rank in range(len(top_ids))]
        asked = [_logprob_in(ranking, token) for token in options.token_ids]
        return TokenLogprobs(token_id, _logprob_in(ranking, token_id), top_ids, top, asked)

    def vector(self, context: int, pooling: Pooling) -> bytes:
        """The vector of a prompt: `VECTOR_SIZE` numbers from -1 to 1, little-endian float32, a function of its ids alone (and
        of where its second text begins)."""
        steps = np.arange(1, VECTOR_SIZE + 1, dtype=np.uint64) + np.uint64((context + (pooling.second_start or 0)) & _MASK)
        return (mix(steps).astype(np.float64) / 2.0**63 - 1.0).astype("<f4").tobytes()

    def complete(
        self, ids: Sequence[int], params: SamplingParams, sample_index: int = 0, num_prompt: int | None = None
    ) -> list[int]:
        """The completion of a prompt by itself, ends by id included: the oracle for everything that batches and shares."""
        known = list(ids)
        num_prompt = len(known) if num_prompt is None else num_prompt
        stops = () if params.ignore_eos else (EOS_ID, *params.stop_token_ids)
        while len(known) - num_prompt < (params.max_new_tokens or 0):
            content = self.content(np.asarray(known, dtype=np.int32))
            context = self.contexts(content, len(known) - 1)[0]
            draw = make_draw(params, sample_index, len(known))
            num_completion = len(known) - num_prompt
            known.append(self.choose(context, params, draw, num_completion))
            if known[-1] in stops and num_completion >= params.min_new_tokens:
                break
        return known[num_prompt:]


def make_draw(params: SamplingParams, sample_index: int, position: int) -> Draw:
    """The draw for the id at `position`."""
    return Draw(0.0 if params.is_greedy else params.temperature, params.seed or 0, sample_index, position)


def _allowed(candidates: list[int], mask: UInt32Array, context: int) -> list[int]:
    """The candidates that the mask allows; where there is none, what it does allow, from an id on that depends on the context."""
    ids = np.flatnonzero(np.unpackbits(mask.view(np.uint8), bitorder="little")).tolist()
    kept = [token for token in candidates if token in ids]
    first = (context >> 16) % len(ids)
    return kept or ids[first:] + ids[:first]


def _rank_logprob(rank: int) -> float:
    return (rank + 1) * _LOG_HALF


def _logprob_in(ranking: list[int], token_id: int) -> float:
    return _rank_logprob(ranking.index(token_id)) if token_id in ranking else _UNLIKELY
