"""What is compared: prompts, decoding and loads, each measured on two sides in turn.

Owns the sizes, the pairs and the rows of the table; knows no engine. Invariant: both sides of a line get the same work, and the
same ids where it is a load.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from sapwood.bench.conversations import Conversation, make_conversations
from sapwood.bench.measure import Spread, alternate, ratios, spread
from sapwood.bench.show import number
from sapwood.simulate.workload import WorkloadOptions

PROMPT_TOKENS, CONTEXT_TOKENS, DECODE_STEPS, BATCH = 512, 16, 64, 32
BATCH_CONTEXT_TOKENS, BATCH_DECODE_STEPS = 64, 32
VOCAB_SIZE = 32000
VALUE = "value"

Case = Callable[[], float]


@dataclass(frozen=True)
class Load:
    """Requests that are sent at once, `at_once` of them open at a time."""

    name: str
    options: WorkloadOptions
    at_once: int

    def conversations(self) -> list[Conversation]:
        """The requests, the same ones each time."""
        return make_conversations(self.name, self.options, VOCAB_SIZE, None)


LOADS = {
    "64 x (1000 shared + 24) in, 32 out, 16 at a time": Load(
        "shared-prefix",
        WorkloadOptions(num_requests=64, input_tokens=24, output_tokens=32, spread=0.0, num_prefixes=1, prefix_tokens=1000),
        16,
    ),
    "64 x 128 in, 64 out, 32 at a time": Load(
        "random", WorkloadOptions(num_requests=64, input_tokens=128, output_tokens=64, spread=0.0), 32
    ),
}


class Side(Protocol):
    """An engine that can be measured. Each call is a process of its own."""

    name: str

    def prefill(self) -> float:
        """Tokens per second of a prompt of PROMPT_TOKENS."""

    def decode(self) -> float:
        """Tokens per second of one row, DECODE_STEPS steps from CONTEXT_TOKENS on."""

    def decode_batch(self) -> float:
        """Tokens per second of BATCH rows, BATCH_DECODE_STEPS steps from BATCH_CONTEXT_TOKENS on."""

    def hold(self, load: Load) -> float:
        """Seconds from the first request of a load to its last answer, the engine started anew."""


@dataclass(frozen=True)
class Line:
    """One row of the comparison: how each side is measured, and whether a larger number is the better one."""

    name: str
    unit: str
    more_is_better: bool
    peer: str
    ours: Case
    theirs: Case


@dataclass(frozen=True)
class Outcome:
    """What a line gave; `ratio` says how many times better Sapwood is."""

    line: Line
    ours: Spread
    theirs: Spread
    ratio: Spread


def engine_lines(ours: Side, theirs: Side) -> list[Line]:
    """Prompt, one row, many rows."""
    return [
        Line(f"prefill, {PROMPT_TOKENS} tokens", "tokens/s", True, theirs.name, ours.prefill, theirs.prefill),
        Line("decode, batch 1", "tokens/s", True, theirs.name, ours.decode, theirs.decode),
        Line(f"decode, batch {BATCH}", "tokens/s", True, theirs.name, ours.decode_batch, theirs.decode_batch),
    ]


def load_lines(ours: Side, theirs: Side) -> list[Line]:
    """The loads."""

    def line(title: str, load: Load) -> Line:
        return Line(title, "s", False, theirs.name, lambda: ours.hold(load), lambda: theirs.hold(load))

    return [line(title, load) for title, load in LOADS.items()]


def measure(line: Line, pairs: int) -> Outcome:
    """Both sides in turn."""
    found = alternate({"ours": lambda: {VALUE: line.ours()}, "theirs": lambda: {VALUE: line.theirs()}}, pairs)
    ours, theirs = found["ours"][VALUE], found["theirs"][VALUE]
    return Outcome(line, spread(ours), spread(theirs), ratios(ours, theirs) if line.more_is_better else ratios(theirs, ours))


HEADER = "| what | against | Sapwood | the other | Sapwood is better by | pairs |\n|---|---|---|---|---|---|"


def row(outcome: Outcome) -> str:
    """A row of the table, in Markdown."""
    cells = [f"{outcome.line.name} ({outcome.line.unit})", outcome.line.peer]
    for found, suffix in ((outcome.ours, ""), (outcome.theirs, ""), (outcome.ratio, " x")):
        cells.append(f"{number(found.median)}{suffix} ({number(found.least)} to {number(found.most)})")
    return "| " + " | ".join([*cells, str(outcome.ratio.count)]) + " |"
