"""The choice methods on a worked example, and where choices begin when they are tokenised with the text before them."""

from __future__ import annotations

import math

import pytest

from sapwood.errors import InvalidRequest
from sapwood.lang import greedy_token_selection, token_length_normalized, unconditional_likelihood_normalized
from sapwood.lang.backends.scoring import plan_choices
from sapwood.lang.choices import ChoiceMethod, ChoiceScores, Triple


def scores(conditional: list[list[float]], unconditional: list[list[float | None]] | None = None) -> ChoiceScores:
    tokens: list[list[Triple]] = [[(value, index, None) for index, value in enumerate(choice)] for choice in conditional]
    return ChoiceScores(tokens, unconditional or [])


# Worked by hand: "Paris" is one token, "Antidisestablishment" many that follow from each other, "Rome" is one token.
CHOICES = ["Paris", "Antidis...", "Rome"]
CONDITIONAL = [[-1.0], [-4.0, -0.1, -0.1, -0.1], [-1.5]]
UNCONDITIONAL: list[list[float | None]] = [[-1.2], [-9.0, -0.1, -0.1, -0.1], [-6.5]]


@pytest.mark.parametrize(
    ("method", "winner", "values"),
    [
        (token_length_normalized, "Paris", [-1.0, -4.3 / 4, -1.5]),
        (greedy_token_selection, "Paris", [(-1.0, -1.0, -1.0, -1.0), (-4.0, -0.1, -0.1, -0.1), (-1.5,) * 4]),
        (unconditional_likelihood_normalized, "Rome", [0.2, 5.0 / 4, 5.0]),
    ],
)
def test_a_worked_example(method: ChoiceMethod, winner: str, values: list[object]) -> None:
    found = scores(CONDITIONAL, UNCONDITIONAL)
    choice, meta = method.decide(CHOICES, found)
    assert choice == winner
    for value, rank in zip(values, method.rank(found), strict=True):
        assert rank == pytest.approx(value)
    assert meta["choice_logprobs"] == pytest.approx([-1.0, -4.3, -1.5])
    total = math.exp(-1.0) + math.exp(-4.3) + math.exp(-1.5)
    assert meta["choice_probabilities"] == pytest.approx([math.exp(v) / total for v in (-1.0, -4.3, -1.5)])


def test_the_methods_differ_where_they_should() -> None:
    """A long choice whose later tokens follow from the first wins by the mean, and loses by its first token."""
    found = scores([[-1.0], [-2.0, -0.1, -0.1]])
    assert token_length_normalized.decide(["a", "b"], found)[0] == "b"
    assert greedy_token_selection.decide(["a", "b"], found)[0] == "a"


def test_greedy_selection_extends_the_shorter_choice_by_its_mean() -> None:
    """ "New" and "New York" begin alike: the second token of one is compared with the mean of the other."""
    assert greedy_token_selection.decide(["New", "New York"], scores([[-1.0], [-1.0, -0.5]]))[0] == "New York"
    assert greedy_token_selection.decide(["New", "New York"], scores([[-1.0], [-1.0, -1.5]]))[0] == "New"


def test_of_equal_choices_the_first_is_taken() -> None:
    for method in (token_length_normalized, greedy_token_selection, unconditional_likelihood_normalized):
        assert method.decide(["a", "b"], scores([[-1.0], [-1.0]], [[-2.0], [-2.0]]))[0] == "a"


def test_choices_are_scored_from_where_they_leave_the_text() -> None:
    plan = plan_choices([7, 8], [1, 2], [[1, 2, 30], [1, 2, 40, 41]], 99)
    assert (plan.start, plan.prompts) == (4, [[7, 8, 1, 2, 30], [7, 8, 1, 2, 40, 41]])
    assert plan.alone == [[99, 30], [99, 40, 41]]


def test_a_choice_may_take_up_the_last_token_of_the_text() -> None:
    plan = plan_choices([7], [1, 2], [[1, 25], [1, 2, 40]], 99)
    assert plan.start == 2, "both from the token that one of them changes"


def test_choices_without_text_follow_the_beginning_token() -> None:
    plan = plan_choices([], [], [[30], [40]], 99)
    assert (plan.start, plan.prompts) == (1, [[99, 30], [99, 40]])
    with pytest.raises(InvalidRequest, match="no token that begins"):
        plan_choices([], [], [[30], [40]], None)


def test_a_choice_that_the_text_swallows_is_still_scored() -> None:
    plan = plan_choices([7], [1, 2], [[1, 2], [1, 2, 3]], 99)
    assert plan.start == 2 and all(len(prompt) > plan.start for prompt in plan.prompts)
