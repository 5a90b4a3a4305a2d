"""Answers one prompt and prints the answer as it is made: `sapwood run [MODEL] "prompt"`.

Knows no engine. Invariant: standard output carries the answer and nothing else.
"""

from __future__ import annotations

import argparse
import sys

from sapwood.cli.generation import add_generation_arguments, open_llm, sampling_params, show
from sapwood.config.raw import Parser
from sapwood.errors import ConfigError


def add_arguments(parser: Parser) -> None:
    """The prompt, perhaps a model before it, and the options."""
    parser.add_argument("words", nargs="*", metavar="[MODEL] PROMPT", help="`-` or nothing takes the prompt from standard input")
    parser.add_argument("--raw", action="store_true", help="continue the text as it is, even if the model has a chat template")
    add_generation_arguments(parser)


def run(args: argparse.Namespace) -> int:
    """Answer, streaming."""
    model, prompt = _model_and_prompt(args.words)
    with open_llm(args, model) as llm:
        if llm.has_chat_template and not args.raw:
            system = [{"role": "system", "content": args.system}] if args.system else []
            show(llm.stream_chat([*system, {"role": "user", "content": prompt}], sampling_params(args)))
        else:
            show(llm.stream(prompt, sampling_params(args)))
    return 0


def _model_and_prompt(words: list[str]) -> tuple[str | None, str]:
    if len(words) > 2:
        raise ConfigError(f"run takes a model and a prompt, got {len(words)} words; put the prompt in quotes")
    model = words[0] if len(words) == 2 else None
    if words and words[-1] != "-":
        return model, words[-1]
    piped = "" if sys.stdin.isatty() else sys.stdin.read()
    if not piped.strip():
        raise ConfigError('run needs a prompt: sapwood run "Why is the sky blue?", or a text on standard input')
    return model, piped
