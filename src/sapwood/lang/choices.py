"""The three ways in which `select` tells which choice is best.

Owns the decision; where the log-probabilities come from is a backend's business. Invariant: a method looks at nothing but the
scores, and of equal choices takes the first.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import exp
from typing import Any

Triple = tuple[float | None, int, str | None]
"""(log-probability, id, text) of one token, as SGLang reports it."""


@dataclass(frozen=True, slots=True)
class ChoiceScores:
    """For each choice the natural log-probabilities of its tokens after the text so far, and, where asked for, without that text.

    The tokens begin where the choices and the text so far first differ when they are tokenised as one: a choice may take up the
    last token of the text. `unconditional` has None where a token has no log-probability (nothing comes before it).
    """

    tokens: list[list[Triple]]
    unconditional: list[list[float | None]] = field(default_factory=list)

    @property
    def logprobs(self) -> list[list[float]]:
        """The numbers alone."""
        return [[logprob or 0.0 for logprob, _, _ in choice] for choice in self.tokens]

    @property
    def means(self) -> list[float]:
        """The mean log-probability of each choice's tokens."""
        return [sum(choice) / len(choice) for choice in self.logprobs]


@dataclass(frozen=True, slots=True)
class ChoiceMethod:
    """A rule with a name. `rank` gives one sortable value for each choice; the greatest wins."""

    name: str
    rank: Callable[[ChoiceScores], Sequence[Any]]
    needs_unconditional: bool = False

    def decide(self, choices: Sequence[str], scores: ChoiceScores) -> tuple[str, dict[str, Any]]:
        """The winner, and what is known about all of them (SGLang's keys, and each choice's probability)."""
        ranks = list(self.rank(scores))
        best = max(range(len(choices)), key=lambda index: (ranks[index], -index))
        sums = [sum(choice) for choice in scores.logprobs]
        weights = [exp(value - max(sums)) for value in sums]
        meta = {
            "normalized_prompt_logprobs": scores.means,
            "input_token_logprobs": scores.tokens,
            "output_token_logprobs": [[] for _ in choices],
            "choice_logprobs": sums,
            "choice_probabilities": [weight / sum(weights) for weight in weights],
        }
        if self.needs_unconditional:
            meta["unconditional_token_logprobs"] = scores.unconditional
            meta["normalized_unconditional_prompt_logprobs"] = ranks
        return choices[best], meta


def _by_mean(scores: ChoiceScores) -> list[float]:
    return scores.means


def _token_by_token(scores: ChoiceScores) -> list[tuple[float, ...]]:
    longest = max(map(len, scores.logprobs))
    return [(*choice, *[mean] * (longest - len(choice))) for choice, mean in zip(scores.logprobs, scores.means, strict=True)]


def _by_gain(scores: ChoiceScores) -> list[float]:
    return [
        sum(value - (without or 0.0) for value, without in zip(choice, unconditional, strict=True)) / len(choice)
        for choice, unconditional in zip(scores.logprobs, scores.unconditional, strict=True)
    ]


token_length_normalized = ChoiceMethod("token_length_normalized", _by_mean)
"""The choice with the highest mean log-probability over its tokens. The default."""

greedy_token_selection = ChoiceMethod("greedy_token_selection", _token_by_token)
"""The choice with the likeliest first token; equal ones are told apart by the next. A choice that ends before another goes on
with its mean."""

unconditional_likelihood_normalized = ChoiceMethod("unconditional_likelihood_normalized", _by_gain, needs_unconditional=True)
"""The choice that the text so far makes most likelier than it is without that text, by the mean over its tokens."""
