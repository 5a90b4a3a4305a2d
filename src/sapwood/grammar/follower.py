"""One completion under its constraint: what it may choose next, and what it must write.

Owns the ids that are forced but not chosen yet; does not know slots, steps or how masks reach a sampler. Invariant: what a
position may choose depends on the ids before it alone, never on whether the forced ones were taken at a jump or one by one.

Where the grammar leaves no choice of bytes, the ids that the tokenizer writes them with are forced: the mask of such a position
admits one id. So a jump over them needs no other tokenisation later, and the model sees the tokens that it knows.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from sapwood.core.constraint import Constraint
from sapwood.core.plan import Steering
from sapwood.core.sampling import SamplingParams
from sapwood.grammar.api import Matcher

MAX_FORCED = 64
"""About as many ids are looked ahead at a time."""
ALL = np.uint32(0xFFFFFFFF)
IMPASSE = "the model's vocabulary has no token with which the grammar could go on"


class Follower:
    """Follows one request. `ending_ids` end it unless its parameters keep them back, which holds as far as something else may
    come; `jumps`: whether forced ids may be appended without being sampled."""

    def __init__(self, matcher: Matcher, params: SamplingParams, eos_ids: Iterable[int], *, jumps: bool) -> None:
        constraint = params.constraint
        assert constraint is not None
        self._matcher = matcher
        self._jumps = jumps
        self._gate = Gate(constraint)
        self._eos_ids = _ids(eos_ids)
        self._kept_back = _ids([*params.stop_token_ids, *eos_ids])
        self._num_kept_back = 2**31 if params.ignore_eos else params.min_new_tokens
        self._num_ids = 0
        self._forced: list[int] = []
        self._impasse = ""
        self._look()

    @property
    def is_free(self) -> bool:
        """Whether the constraint has not begun yet."""
        return not self._gate.is_open

    @property
    def matcher(self) -> Matcher:
        """Stands after the forced ids."""
        return self._matcher

    def take(self, token_id: int, num_before: int) -> None:
        """An id was chosen after `num_before` completion ids; those of them that are not known here were forced."""
        del self._forced[: num_before - self._num_ids]
        self._num_ids = num_before + 1
        if not self._gate.is_open:
            self._gate.take(token_id)
        elif self._forced and self._forced[0] == token_id:
            del self._forced[0]
        else:
            self._matcher.accept(token_id)
        if not self._forced:
            self._look()

    def needs_fill(self, num_before: int) -> bool:
        """Whether the mask of the id after `num_before` completion ids comes from the matcher; `prepare` writes it otherwise."""
        if not self._gate.is_open or num_before - self._num_ids < len(self._forced):
            return False
        num_forced = len(self._forced)
        self._look()
        return len(self._forced) == num_forced and not self._matcher.error

    def prepare(self, num_before: int, mask: NDArray[np.uint32]) -> None:
        """Write the mask of a position that the matcher is not asked about: it is forced, free, or nothing matters any more."""
        index = num_before - self._num_ids
        if self._gate.is_open and index < len(self._forced):
            mask[:] = 0
            _set(mask, np.array([self._forced[index]]))
        else:
            mask[:] = ALL
            if not self._gate.is_open:
                _clear(mask, self._eos_ids)

    def finish(self, num_before: int, mask: NDArray[np.uint32]) -> None:
        """Keep endings back in a mask that the matcher wrote; a mask that allows nothing is an impasse."""
        if num_before < self._num_kept_back:
            before = mask.copy()
            _clear(mask, self._kept_back)
            if not mask.any():
                mask[:] = before
        if not mask.any():
            self._impasse = IMPASSE
            mask[:] = ALL

    def steering(self) -> Steering | None:
        """What there is to say after the ids so far; None: nothing."""
        error = self._matcher.error or self._impasse
        if error:
            return Steering(error=f"the constraint cannot be followed any further: {error}")
        forced = self._forced if self._jumps else []
        is_complete = self._gate.is_open and self._matcher.is_complete and (self._jumps or not self._forced)
        return Steering(list(forced), is_complete) if forced or is_complete else None

    def _look(self) -> None:
        """Past the forced ids, ask what is forced next, which the matcher takes in at once; what never ends is cut off."""
        end = len(self._forced) + MAX_FORCED
        while self._gate.is_open and len(self._forced) < end and (forced := self._matcher.forced()[:MAX_FORCED]):
            for token_id in forced:
                if not self._matcher.accept(token_id):
                    return
            self._forced += forced


class Gate:
    """Opens when the ids after which a constraint starts have come in a row; without any it is open."""

    def __init__(self, constraint: Constraint) -> None:
        self._wanted = constraint.starts_after
        self._latest: tuple[int, ...] = ()
        self.is_open = not self._wanted

    def take(self, token_id: int) -> None:
        """One more id before the constraint."""
        self._latest = (*self._latest, token_id)[-len(self._wanted) :]
        self.is_open = self._latest == self._wanted


def _ids(values: Iterable[int]) -> NDArray[np.int64]:
    return np.unique(np.array(list(values), dtype=np.int64))


def _set(mask: NDArray[np.uint32], ids: NDArray[np.int64]) -> None:
    np.bitwise_or.at(mask, ids // 32, np.uint32(1) << (ids % 32).astype(np.uint32))


def _clear(mask: NDArray[np.uint32], ids: NDArray[np.int64]) -> None:
    np.bitwise_and.at(mask, ids // 32, ~(np.uint32(1) << (ids % 32).astype(np.uint32)))
