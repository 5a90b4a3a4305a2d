"""What `run` and `chat` share: engine and sampling options on the command line, an `LLM` made from them.

Knows no prompt. Invariant: generated text goes to standard output as it comes, everything else to standard error.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterable
from typing import Any

from sapwood.config.options import LLM_GROUPS, find
from sapwood.config.raw import COMMAND_LINE, Parser, add_options, from_mapping, gather
from sapwood.core.sampling import SamplingParams
from sapwood.llm import LLM
from sapwood.observability.logging import configure_logging
from sapwood.offline import GenerationResult

CHAT_MAX_NEW_TOKENS = 512


def add_generation_arguments(parser: Parser) -> None:
    """The options of the engine, and how tokens are chosen."""
    sampling = parser.add_argument_group("sampling", "How the answer is chosen.")
    sampling.add_argument(
        "--max-new-tokens", type=int, metavar="N", default=CHAT_MAX_NEW_TOKENS, help="longest answer [%(default)s]"
    )
    sampling.add_argument(
        "--temperature", type=float, metavar="T", default=0.0, help="0 always takes the likeliest token [%(default)s]"
    )
    sampling.add_argument(
        "--top-p", type=float, metavar="P", default=1.0, help="sample from the likeliest tokens up to this mass"
    )
    sampling.add_argument("--top-k", type=int, metavar="K", default=-1, help="sample from the K likeliest tokens; -1: all")
    sampling.add_argument("--seed", type=int, metavar="S", help="repeat a sampled answer")
    parser.add_argument("--system", metavar="TEXT", help="a system message before the conversation")
    parser.add_argument("--verbose", action="store_true", help="show the log of the engine")
    add_options(parser, LLM_GROUPS)


def sampling_params(args: argparse.Namespace) -> SamplingParams:
    """The parameters that the arguments ask for; `LLM` validates them."""
    return SamplingParams(
        max_new_tokens=args.max_new_tokens, temperature=args.temperature, top_p=args.top_p, top_k=args.top_k, seed=args.seed
    )


def open_llm(args: argparse.Namespace, model: str | None) -> LLM:
    """Load the model that was named, else that of the options, with progress bars."""
    configure_logging("info" if args.verbose else "warning")
    return LLM(progress=True, **llm_options(args, model))


def llm_options(args: argparse.Namespace, model: str | None) -> dict[str, Any]:
    """The options that an engine without a server understands; `model`, if there is one, goes first."""
    raw = gather(args, os.environ)
    if model is not None:
        raw = from_mapping({"model_path": model}, COMMAND_LINE).over(raw)
    return {name: value for name, value in raw.values.items() if find(name, COMMAND_LINE).group in LLM_GROUPS}


def show(stream: Iterable[GenerationResult]) -> str:
    """Print what is new in each result of a stream, then a newline; returns the whole text."""
    text = ""
    try:
        for result in stream:
            sys.stdout.write(result.delta)
            sys.stdout.flush()
            text = result.text
    finally:
        print(flush=True)
    return text
