"""Two answers at the same time, each printed as it grows. Run: python examples/streaming.py [MODEL]"""

from __future__ import annotations

import asyncio
import sys

from sapwood import LLM, SamplingParams


async def answer(llm: LLM, question: str) -> str:
    """Stream one answer; the other keeps running in the same batch."""
    text = ""
    params = SamplingParams(temperature=0.0, max_new_tokens=32)
    async for result in llm.astream(question, params):
        print(f"[{question[:12]}] {result.text[len(text) :]!r}")
        text = result.text
    return text


async def main() -> None:
    model = sys.argv[1] if len(sys.argv) > 1 else "smollm2-135m-instruct"
    with LLM(model) as llm:
        answers = await asyncio.gather(answer(llm, "The sea is"), answer(llm, "A forest is"))
    for text in answers:
        print("-", text.strip())


if __name__ == "__main__":
    asyncio.run(main())
