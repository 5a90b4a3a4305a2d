"""Two branches of one program, streamed side by side into a terminal with rich.

Run: python examples/streaming_terminal.py [MODEL]
"""

from __future__ import annotations

import asyncio
import sys
from typing import Any

from rich.columns import Columns
from rich.console import Console
from rich.live import Live
from rich.panel import Panel

import sapwood.lang as sgl

SUBJECTS = ["The sea is", "A forest is"]


@sgl.function
def describe(s: Any, subject: str) -> None:
    s += subject + sgl.gen("text", max_tokens=48, temperature=0.7)


async def show(engine: sgl.Engine) -> None:
    states = [describe.run(subject, backend=engine, stream=True) for subject in SUBJECTS]
    texts = [""] * len(states)
    with Live(console=Console(), refresh_per_second=12) as live:

        async def follow(index: int) -> None:
            async for piece in states[index].text_async_iter():
                texts[index] += piece
                live.update(Columns([Panel(text, width=46) for text in texts]))

        await asyncio.gather(*(follow(index) for index in range(len(states))))


def main() -> None:
    with sgl.Engine(sys.argv[1] if len(sys.argv) > 1 else "smollm2-135m-instruct") as engine:
        asyncio.run(show(engine))


if __name__ == "__main__":
    main()
