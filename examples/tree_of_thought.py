"""A tree of thoughts: each level branches, all branches run at once, the best by score goes on.

Run: python examples/tree_of_thought.py [MODEL]
"""

from __future__ import annotations

import sys
from typing import Any

import sapwood.lang as sgl

WIDTH, DEPTH = 4, 2


@sgl.function
def solve(s: Any, question: str) -> None:
    s += f"Question: {question}\nLet us think step by step.\n"
    for depth in range(DEPTH):
        branches = s.fork(WIDTH)
        branches += f"Step {depth + 1}:" + sgl.gen("step", max_tokens=32, temperature=0.8, stop="\n") + "\n"
        branches += "This step is" + sgl.select("grade", [" right", " wrong"])
        best = max(branches, key=lambda branch: branch.get_meta_info("grade")["choice_probabilities"][0])
        s += f"Step {depth + 1}:" + best["step"] + "\n"
    s += "Answer:" + sgl.gen("answer", max_tokens=16, stop="\n", temperature=0)


def main() -> None:
    with sgl.Engine(sys.argv[1] if len(sys.argv) > 1 else "smollm2-135m-instruct") as engine:
        sgl.set_default_backend(engine)
        state = solve.run(question="A farmer has 12 hens and buys 3 times as many. How many hens are there?")
        print(state.text())


if __name__ == "__main__":
    main()
