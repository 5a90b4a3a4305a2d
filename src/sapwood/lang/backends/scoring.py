"""Choices as ids: what they have in common with the text before them, and from where on they are scored.

Owns the border between text and choice; does not know who computes. Invariant: text and choice are tokenised as one, so a choice
may take up the last token of the text, and all choices are scored from the same position on.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sapwood.errors import InvalidRequest


@dataclass(frozen=True, slots=True)
class ChoicePlan:
    """`prompts[i]` is the text with choice i, from position `start` on the choice; `alone[i]` is the choice without the text."""

    prompts: list[list[int]]
    start: int
    alone: list[list[int]]


def plan_choices(head: Sequence[int], tail: Sequence[int], tails: Sequence[Sequence[int]], begin_id: int | None) -> ChoicePlan:
    """`head` is what the text surely begins with, `tail` the ids of the rest of it, `tails[i]` those of the rest with choice i.

    `begin_id` stands before what has nothing before it; raises InvalidRequest where that is needed and the model has none.
    """
    start = len(head) + min(_num_common(tail, with_choice) for with_choice in tails)
    prompts = [[*head, *with_choice] for with_choice in tails]
    if any(len(prompt) <= start for prompt in prompts):
        start = min(map(len, prompts)) - 1
    if start <= 0 and begin_id is not None:
        prompts, start = [[begin_id, *prompt] for prompt in prompts], start + 1
    if start <= 0:
        raise InvalidRequest("a choice needs text before it: the model has no token that begins one", param="choices")
    alone = [] if begin_id is None else [[begin_id, *prompt[start:]] for prompt in prompts]
    return ChoicePlan(prompts, start, alone)


def _num_common(left: Sequence[int], right: Sequence[int]) -> int:
    count = 0
    for one, other in zip(left, right, strict=False):
        if one != other:
            break
        count += 1
    return count
