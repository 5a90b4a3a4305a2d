"""Perplexity of many texts, in one batch of prompts that generate nothing. Run: python examples/batch_scoring.py [MODEL]"""

from __future__ import annotations

import math
import sys
from typing import Any, cast

from sapwood import Engine

TEXTS = [
    "The cat sat on the mat.",
    "The mat sat on the cat.",
    "Mat the on sat cat the.",
    "Water boils at one hundred degrees.",
]


def main() -> None:
    with Engine(sys.argv[1] if len(sys.argv) > 1 else "smollm2-135m-instruct") as engine:
        answers = engine.generate(TEXTS, {"max_new_tokens": 0}, return_logprob=True, logprob_start_len=0)
        for text, answer in zip(TEXTS, cast(list[Any], answers), strict=True):
            logprobs = [entry[0] for entry in answer["meta_info"]["input_token_logprobs"] if entry[0] is not None]
            print(f"{math.exp(-sum(logprobs) / len(logprobs)):10.1f}  {text}")


if __name__ == "__main__":
    main()
