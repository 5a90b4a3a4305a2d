"""A conversation of several turns: each turn finds the ones before in the cache. Run: python examples/multi_turn.py [MODEL]"""

from __future__ import annotations

import sys
from typing import Any

import sapwood.lang as sgl

QUESTIONS = ["Name a tree.", "How tall does it grow?", "And where?"]


@sgl.function
def conversation(s: Any, questions: list[str]) -> None:
    s += sgl.system("You answer in one short sentence.")
    for number, question in enumerate(questions):
        s += sgl.user(question)
        s += sgl.assistant(sgl.gen(f"answer_{number}", max_tokens=24, temperature=0))


def main() -> None:
    with sgl.Engine(sys.argv[1] if len(sys.argv) > 1 else "smollm2-135m-instruct") as engine:
        state = conversation.run(QUESTIONS, backend=engine)
        for number, question in enumerate(QUESTIONS):
            meta = state.get_meta_info(f"answer_{number}")
            print(f"{question}\n  {state[f'answer_{number}'].strip()}")
            print(f"  ({meta['cached_tokens']} of {meta['prompt_tokens']} prompt tokens were cached)")


if __name__ == "__main__":
    main()
