"""Self-consistency: n samples of one prompt, computed once, and a vote. Run: python examples/self_consistency.py [MODEL]"""

from __future__ import annotations

import re
import sys
from collections import Counter
from typing import Any

import sapwood.lang as sgl


@sgl.function
def answer(s: Any, question: str) -> None:
    s += "Question: I have 2 pears and buy 5 more. How many pears do I have?\nThoughts: 2 + 5 = 7. Answer: 7\n"
    s += f"Question: {question}\nThoughts:" + sgl.gen("thoughts", n=8, max_tokens=32, temperature=0.7, stop="\n")


def main() -> None:
    with sgl.Engine(sys.argv[1] if len(sys.argv) > 1 else "smollm2-135m-instruct") as engine:
        state = answer.run("I have 4 apples and eat 3. How many apples are left?", backend=engine)
        found = [re.findall(r"\d+", thought) for thought in state["thoughts"]]
        votes = Counter(numbers[-1] for numbers in found if numbers)
        print(f"{len(found)} samples, votes: {dict(votes.most_common())}")


if __name__ == "__main__":
    main()
