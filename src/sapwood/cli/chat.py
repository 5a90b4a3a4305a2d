"""A conversation with a model, line by line: `sapwood chat [MODEL]`. /reset starts over, /exit ends.

Knows no engine. Invariant: the history holds complete turns only; a turn that failed or was stopped by Ctrl-C leaves no trace.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator

from sapwood.cli.generation import add_generation_arguments, open_llm, sampling_params, show
from sapwood.config.raw import Parser
from sapwood.core.sampling import SamplingParams
from sapwood.errors import InvalidRequest
from sapwood.llm import LLM

PROMPT = "> "


def add_arguments(parser: Parser) -> None:
    """Perhaps a model, and the options."""
    parser.add_argument("model", nargs="?", metavar="MODEL", help="catalog name, folder or file")
    add_generation_arguments(parser)


def run(args: argparse.Namespace) -> int:
    """Talk until /exit or the end of standard input."""
    with open_llm(args, args.model) as llm:
        converse(llm, args.system, sampling_params(args))
    return 0


def converse(llm: LLM, system: str | None, params: SamplingParams) -> None:
    """The conversation itself, reading standard input and printing the answers."""
    start = [{"role": "system", "content": system}] if system else []
    history = list(start)
    for line in _lines():
        if line == "/exit":
            return
        if line == "/reset":
            history = list(start)
            continue
        if not line:
            continue
        turn = [*history, {"role": "user", "content": line}]
        try:
            history = [*turn, {"role": "assistant", "content": show(llm.stream_chat(turn, params))}]
        except InvalidRequest as error:  # for example: the conversation has grown too long
            print(f"error: {error.message}", file=sys.stderr)
        except KeyboardInterrupt:
            print("(stopped)", file=sys.stderr)


def _lines() -> Iterator[str]:
    """Lines of standard input without their ends, asking on a terminal."""
    asks = sys.stdin.isatty()
    while True:
        if asks:
            print(PROMPT, end="", file=sys.stderr, flush=True)
        line = sys.stdin.readline()
        if not line:
            return
        yield line.strip()
