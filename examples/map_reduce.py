"""Map and reduce over a document: its parts are read at once, their notes become one summary.

Run: python examples/map_reduce.py [MODEL]
"""

from __future__ import annotations

import sys
from typing import Any

import sapwood.lang as sgl

PARTS = [
    "In spring the valley floods, and the meadows turn into a lake where cranes rest on their way north.",
    "In summer the farmers cut the hay twice, and the village holds a fair with races and music.",
    "In autumn the beech woods turn red, and mushrooms are gathered, dried and sold.",
    "In winter the road is closed for weeks, and letters come by ski.",
]
TASK = "You take notes about a valley. A note has at most ten words.\n\n"


@sgl.function
def summarise(s: Any, parts: list[str]) -> None:
    s += TASK
    forks = s.fork(len(parts))
    forks += lambda index: f"Text: {parts[index]}\nNote:" + sgl.gen("note", max_tokens=20, stop="\n")
    forks.join()
    s += "Notes:\n" + "".join(f"-{note}\n" for note in s["note"])
    s += "In one sentence, the year in the valley:" + sgl.gen("summary", max_tokens=40, stop="\n")


def main() -> None:
    with sgl.Engine(sys.argv[1] if len(sys.argv) > 1 else "smollm2-135m-instruct") as engine:
        state = summarise.run(PARTS, backend=engine, temperature=0)
        print(state.text().removeprefix(TASK))


if __name__ == "__main__":
    main()
