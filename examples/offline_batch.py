"""Generate for many prompts at once, without a server. Run: python examples/offline_batch.py [MODEL]"""

from __future__ import annotations

import sys

from sapwood import LLM, SamplingParams

PROMPTS = [
    "The capital of France is",
    "The capital of Italy is",
    "Two plus two is",
    "Water boils at",
]


def main() -> None:
    model = sys.argv[1] if len(sys.argv) > 1 else "smollm2-135m-instruct"
    with LLM(model) as llm:
        results = llm.generate(PROMPTS, SamplingParams(temperature=0.0, max_new_tokens=12))
        for prompt, result in zip(PROMPTS, results, strict=True):
            print(f"{prompt!r} -> {result.text!r} ({result.finish_reason}, {result.num_cached_tokens} cached)")

        # The second time, the prompts are found in the prefix cache.
        again = llm.generate(PROMPTS, SamplingParams(temperature=0.0, max_new_tokens=12))
        print("cached tokens:", [result.num_cached_tokens for result in again])


if __name__ == "__main__":
    main()
