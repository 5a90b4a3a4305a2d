"""Few-shot classification: the examples are computed once for the whole batch. Run: python examples/few_shot.py [MODEL]"""

from __future__ import annotations

import sys
from typing import Any

import sapwood.lang as sgl

SHOTS = """Review: The soup was cold and the waiter rude. Mood: negative
Review: We laughed all evening, what a place! Mood: positive
Review: I would not come back if they paid me. Mood: negative
Review: The best bread in town, and so friendly. Mood: positive
"""
REVIEWS = ["Everything was burnt.", "A wonderful view and a lovely dinner.", "They forgot us twice.", "I loved the dessert."]


@sgl.function
def classify(s: Any, review: str) -> None:
    s += SHOTS
    s += f"Review: {review} Mood:" + sgl.select("mood", [" positive", " negative"])


def main() -> None:
    with sgl.Engine(sys.argv[1] if len(sys.argv) > 1 else "smollm2-135m-instruct") as engine:
        sgl.set_default_backend(engine)
        for review, state in zip(REVIEWS, classify.run_batch([{"review": review} for review in REVIEWS]), strict=True):
            positive, negative = state.get_meta_info("mood")["choice_probabilities"]
            print(f"{state['mood'].strip():9} ({positive:.2f} to {negative:.2f})  {review}")


if __name__ == "__main__":
    main()
