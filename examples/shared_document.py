"""Questions about one document (RAG): the document is computed once for all of them.

Run: python examples/shared_document.py [MODEL]
"""

from __future__ import annotations

import sys
from typing import Any

import sapwood.lang as sgl

DOCUMENT = (
    "The old mill by the river was built in 1784 by Jonas Hart. It ground barley and rye for three villages until 1921, when a "
    "flood broke its wheel. Since 1988 it has been a museum; it is open from April to October, free for children. "
)
QUESTIONS = ["Who built the mill?", "When did it stop?", "What is it today?", "Who need not pay?"]


@sgl.function
def ask(s: Any, document: str, question: str) -> None:
    s += sgl.system("Answer from the document, in a few words.\n\n" + document)
    s += sgl.user(question)
    s += sgl.assistant(sgl.gen("answer", max_tokens=24, temperature=0))


def main() -> None:
    with sgl.Engine(sys.argv[1] if len(sys.argv) > 1 else "smollm2-135m-instruct") as engine:
        sgl.set_default_backend(engine)
        states = ask.run_batch([{"document": DOCUMENT * 4, "question": question} for question in QUESTIONS])
        for question, state in zip(QUESTIONS, states, strict=True):
            meta = state.get_meta_info("answer")
            print(f"{question} {state['answer'].strip()} ({meta['cached_tokens']} of {meta['prompt_tokens']} tokens cached)")


if __name__ == "__main__":
    main()
