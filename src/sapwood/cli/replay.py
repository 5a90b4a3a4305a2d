"""Repeats the decisions of a step log and says whether they came out the same: `sapwood replay FILE`.

Knows the log by its reader alone. Invariant: needs no model, and returns 1 if and only if a plan differs.
"""

from __future__ import annotations

import argparse

from sapwood.config.raw import Parser
from sapwood.scheduler.step_log import replay


def add_arguments(parser: Parser) -> None:
    """The file."""
    parser.add_argument("file", metavar="FILE", help="a log that `--step-log FILE` wrote")


def run(args: argparse.Namespace) -> int:
    """Print what came of it."""
    outcome = replay(args.file)
    print(f"{outcome.num_turns} decisions, {outcome.num_steps} steps, {outcome.num_tokens} tokens")
    if outcome.is_torn:
        print("the last record is cut off; everything before it was repeated")
    if outcome.first_difference is None:
        print("every plan is the same")
        return 0
    print(f"the plan of step {outcome.first_difference} differs: the log comes from another version, or the scheduler has a bug")
    return 1
