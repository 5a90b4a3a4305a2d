"""What a load generator asks: generated prompts, conversations, or those of a ShareGPT file.

Owns requests before they are sent; knows no server. Invariant: the same options give the same requests, in order of arrival.

Prompts of random ids have exactly the length that was asked for. Conversations must contain what the server answered, which comes
as text, so they are text: words of which most vocabularies make one token each, counted as such.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from math import inf
from pathlib import Path

import msgspec
import numpy as np

from sapwood.bench.prompts import ID_WORKLOADS, draw_prompts
from sapwood.errors import ConfigError
from sapwood.simulate.workload import WorkloadOptions

SERVE_WORKLOADS = (*ID_WORKLOADS, "multi-turn", "sharegpt")
WORDS = re.findall(
    r"\w+",
    "time year people way day man thing woman life child world school state family student group country problem hand part place"
    " case week company system program question work night point home water room mother area money story fact month book",
)
CHARACTERS_PER_TOKEN = 4


@dataclass(frozen=True, slots=True)
class Turn:
    """A prompt (ids, or what is appended to the conversation so far) and how many tokens are wanted."""

    prompt: list[int] | str
    num_new: int


@dataclass(frozen=True, slots=True)
class Conversation:
    """Turns that follow one another, the first `arrival_s` after the start, the others as soon as the answer is there."""

    arrival_s: float
    turns: list[Turn]


class ShareTurn(msgspec.Struct, frozen=True):
    """One message of the file."""

    sender: str = msgspec.field(name="from")
    value: str


class ShareConversation(msgspec.Struct, frozen=True):
    """One record of the file; other fields are ignored."""

    conversations: list[ShareTurn] = []


def make_conversations(name: str, options: WorkloadOptions, vocab_size: int, path: str | None) -> list[Conversation]:
    """The load; `path` is the file of sharegpt. Raises ConfigError."""
    chance = np.random.default_rng(options.seed)
    if name in ID_WORKLOADS:
        load = [[Turn(ids.tolist(), count)] for ids, count in draw_prompts(name, options, vocab_size)]
    elif name == "multi-turn":
        load = _multi_turn(options, chance)
    elif name == "sharegpt" and path:
        load = _share_gpt(path, options, chance)
    else:
        raise ConfigError(f"{name!r} cannot be sent; take one of {', '.join(SERVE_WORKLOADS)}, sharegpt with --dataset FILE")
    return [Conversation(arrival_s, turns) for arrival_s, turns in zip(_arrivals(len(load), options, chance), load, strict=True)]


def _arrivals(count: int, options: WorkloadOptions, chance: np.random.Generator) -> list[float]:
    if options.rate == inf:
        return [0.0] * count
    moments: list[float] = np.cumsum(chance.exponential(1.0 / options.rate, count)).tolist()
    return moments


def _length(mean: int, options: WorkloadOptions, chance: np.random.Generator) -> int:
    reach = int(mean * options.spread)
    return max(int(chance.integers(mean - reach, mean + reach + 1)), 1)


def _multi_turn(options: WorkloadOptions, chance: np.random.Generator) -> list[list[Turn]]:
    def turn() -> Turn:
        words = chance.choice(WORDS, _length(options.input_tokens, options, chance))
        return Turn(" " + " ".join(words.tolist()) + ".\n", _length(options.output_tokens, options, chance))

    starts = range(0, options.num_requests, options.num_turns)
    return [[turn() for _ in range(min(options.num_turns, options.num_requests - first))] for first in starts]


def _share_gpt(path: str, options: WorkloadOptions, chance: np.random.Generator) -> list[list[Turn]]:
    """First questions of conversations, in a random order; as many new tokens as the recorded answer has by its length."""
    try:
        records = msgspec.json.decode(Path(path).read_bytes(), type=list[ShareConversation])
    except OSError as error:
        raise ConfigError(f"cannot read {path} ({error.strerror}); give --dataset a ShareGPT file") from None
    except msgspec.MsgspecError as error:
        raise ConfigError(f"{path} is not in ShareGPT's format: {error}") from None
    pairs = [record.conversations[:2] for record in records]
    turns = [
        [Turn(pair[0].value, max(len(pair[1].value) // CHARACTERS_PER_TOKEN, 1))]
        for pair in pairs
        if len(pair) == 2 and pair[0].sender in ("human", "user") and pair[0].value
    ]
    if not turns:
        raise ConfigError(f"{path} has no conversation that a human begins and somebody answers")
    order = chance.permutation(len(turns))[: options.num_requests]
    return [turns[index] for index in order]
