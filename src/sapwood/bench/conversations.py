"""What a load generator asks: generated prompts, conversations, or those of a ShareGPT file.

Owns requests before they are sent; knows no server. Invariant: the same options give the same requests, in order of arrival.

Prompts of random ids have exactly the length that was asked for. Conversations must contain what the server answered, which comes
as text, so they are text: words of which most vocabularies make one token each, counted as such.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from math import inf
from pathlib import Path

import msgspec
import numpy as np

from sapwood.bench.prompts import into_vocabulary
from sapwood.core.plan import Int32Array
from sapwood.errors import ConfigError
from sapwood.simulate.workload import SimRequest, WorkloadOptions, workloads

SERVE_WORKLOADS = (*workloads, "sharegpt")
WORDS = re.findall(
    r"\w+",
    "time year people way day man thing woman life child world school state family student group country problem hand part place"
    " case week company system program question work night point home water room mother area money story fact month book",
)
CHARACTERS_PER_TOKEN = 4


@dataclass(frozen=True, slots=True)
class Turn:
    """A prompt (ids, or what is appended to all that was said before) and how many tokens are wanted; `then` are the turns that
    wait for the answer, and that long after it."""

    prompt: list[int] | str
    num_new: int
    pause_s: float = 0.0
    then: list[Turn] = field(default_factory=list)

    @property
    def num_tokens_wanted(self) -> int:
        """Tokens wanted in this turn and in all that follow."""
        return self.num_new + sum(turn.num_tokens_wanted for turn in self.then)


@dataclass(frozen=True, slots=True)
class Conversation:
    """A first turn, that long after the start."""

    arrival_s: float
    first: Turn


class ShareTurn(msgspec.Struct, frozen=True):
    """One message of the file."""

    sender: str = msgspec.field(name="from")
    value: str


class ShareConversation(msgspec.Struct, frozen=True):
    """One record of the file; other fields are ignored."""

    conversations: list[ShareTurn] = []


def make_conversations(name: str, options: WorkloadOptions, vocab_size: int, path: str | None) -> list[Conversation]:
    """The load; `path` is the file of sharegpt. Raises ConfigError."""
    if name in workloads:
        requests = list(workloads.get(name)(options))
        if not any(request.then for request in requests):
            return [_of_ids(request, vocab_size) for request in requests]
        return [Conversation(request.arrival_s, _said(request, 0, 0.0)) for request in requests]
    if name == "sharegpt" and path:
        chance = np.random.default_rng(options.seed)
        turns = _share_gpt(path, options, chance)
        return [Conversation(at_s, turn) for at_s, turn in zip(_arrivals(len(turns), options, chance), turns, strict=True)]
    raise ConfigError(f"{name!r} cannot be sent; take one of {', '.join(SERVE_WORKLOADS)}, sharegpt with --dataset FILE")


def _of_ids(request: SimRequest, vocab_size: int) -> Conversation:
    return Conversation(request.arrival_s, Turn(into_vocabulary(request.prompt, vocab_size).tolist(), request.num_new))


def _said(request: SimRequest, num_said: int, pause_s: float) -> Turn:
    """A request in words, less the first `num_said` tokens of its prompt, which were said before."""
    num_known = len(request.prompt) + request.num_new
    then = [_said(following, num_known, following.arrival_s) for following in request.then]
    return Turn(_words(request.prompt[num_said:]), request.num_new, pause_s, then)


def _words(ids: Int32Array) -> str:
    """A word for each id, equal ones for equal ids."""
    return " " + " ".join([WORDS[number] for number in (ids % len(WORDS)).tolist()]) + ".\n"


def _arrivals(count: int, options: WorkloadOptions, chance: np.random.Generator) -> list[float]:
    if options.rate == inf:
        return [0.0] * count
    moments: list[float] = np.cumsum(chance.exponential(1.0 / options.rate, count)).tolist()
    return moments


def _share_gpt(path: str, options: WorkloadOptions, chance: np.random.Generator) -> list[Turn]:
    """First questions of conversations, in a random order; as many new tokens as the recorded answer has by its length."""
    try:
        records = msgspec.json.decode(Path(path).read_bytes(), type=list[ShareConversation])
    except OSError as error:
        raise ConfigError(f"cannot read {path} ({error.strerror}); give --dataset a ShareGPT file") from None
    except msgspec.MsgspecError as error:
        raise ConfigError(f"{path} is not in ShareGPT's format: {error}") from None
    pairs = [record.conversations[:2] for record in records]
    turns = [
        Turn(pair[0].value, max(len(pair[1].value) // CHARACTERS_PER_TOKEN, 1))
        for pair in pairs
        if len(pair) == 2 and pair[0].sender in ("human", "user") and pair[0].value
    ]
    if not turns:
        raise ConfigError(f"{path} has no conversation that a human begins and somebody answers")
    order = chance.permutation(len(turns))[: options.num_requests]
    return [turns[index] for index in order]
