"""An agent's loop: the model picks a tool, Python runs it, the result goes back into the text.

Run: python examples/agent.py [MODEL]
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from typing import Any

import sapwood.lang as sgl

STOCK = {"apples": 12, "pears": 7, "plums": 0}


def count(text: str) -> str:
    return ", ".join(f"{name}: {STOCK[name]}" for name in STOCK if name in text) or "unknown"


def add(text: str) -> str:
    return str(sum(map(int, re.findall(r"\d{1,6}", text))))


TOOLS: dict[str, Callable[[str], str]] = {"count": count, "add": add}
EXAMPLE = """Tools: count(fruit), add(numbers), finish(answer).
Task: How many plums and pears are there?
Action: count(plums) = plums: 0
Action: count(pears) = pears: 7
Action: add(0, 7) = 7
Action: finish(7)
"""


@sgl.function
def agent(s: Any, task: str) -> None:
    s += EXAMPLE + f"Task: {task}\n"
    for _ in range(5):
        s += "Action: " + sgl.select("tool", [*TOOLS, "finish"]) + "(" + sgl.gen("input", max_tokens=16, stop=[")", "\n"]) + ")"
        if s["tool"] == "finish":
            return
        s += " = " + TOOLS[s["tool"]](s["input"]) + "\n"


def main() -> None:
    with sgl.Engine(sys.argv[1] if len(sys.argv) > 1 else "smollm2-135m-instruct") as engine:
        state = agent.run("How many apples and pears are there?", backend=engine, temperature=0)
        print(state.text().removeprefix(EXAMPLE))


if __name__ == "__main__":
    main()
