"""A judge with branches: one essay, several points of view at once, one verdict. Run: python examples/judge.py [MODEL]"""

from __future__ import annotations

import sys
from typing import Any

import sapwood.lang as sgl

ESSAY = (
    "Trees in cities cool the streets, hold the rain and are good company. A street with trees is up to six degrees cooler in "
    "summer. Planting them costs money once; not planting them costs money every year. "
)
VIEWS = ["clarity", "evidence", "style"]


@sgl.function
def judge(s: Any, essay: str) -> None:
    s += f"Essay: {essay}\n"
    forks = s.fork(len(VIEWS))
    for fork, view in zip(forks, VIEWS, strict=True):
        fork += f"Its {view}, in one sentence:" + sgl.gen("remark", max_tokens=32, stop="\n")
        fork += "\nGrade from 1 to 5:" + sgl.select("grade", [f" {grade}" for grade in range(1, 6)])
    forks.join()
    for view, remark, grade in zip(VIEWS, s["remark"], s["grade"], strict=True):
        s += f"{view} ({grade.strip()} of 5):{remark}\n"
    s += "All in all:" + sgl.gen("verdict", max_tokens=32, stop="\n")


def main() -> None:
    with sgl.Engine(sys.argv[1] if len(sys.argv) > 1 else "smollm2-135m-instruct") as engine:
        print(judge.run(ESSAY, backend=engine, temperature=0).text())


if __name__ == "__main__":
    main()
