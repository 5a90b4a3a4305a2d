"""OpenVINO GenAI's side: its continuous batching in process, by the Python of an environment that has it.

Owns the work that is handed to `openvino_run.py` and what comes back. OpenVINO GenAI has no server, so a load reaches it without
HTTP, which is in its favour. Invariant: what comes back has all tokens that were asked for.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from comparison import lines
from comparison.processes import find_program, output_of
from sapwood.bench.conversations import Turn
from sapwood.bench.prompts import draw_ids, into_vocabulary
from sapwood.errors import ConfigError, EngineFailed

SCRIPT = Path(__file__).with_name("openvino_run.py")
VERSION = "import importlib.metadata; print(importlib.metadata.version('openvino-genai'))"
HINT = "make an environment, install openvino-genai into it and give --openvino-python its Python"
TOKENS_PER_STEP, CACHE_GB = 256, 4

Request = tuple[list[int], int]
"""Ids of a prompt, and how many new ones are wanted."""


@dataclass(frozen=True)
class Heard:
    """What a run took: seconds until all requests had a first token, and in all, and the tokens since the former."""

    all_first_s: float
    duration_s: float
    tokens_since: int


def heard(text: str, wanted: int) -> Heard:
    """The output of `openvino_run.py`, which is the last line that it prints; raises EngineFailed."""
    try:
        fields = json.loads(text.splitlines()[-1])
        found = Heard(float(fields["all_first_s"]), float(fields["duration_s"]), int(fields["tokens_since"]))
        num_tokens = int(fields["output_tokens"])
    except (ValueError, KeyError, TypeError, IndexError) as error:
        raise EngineFailed(f"OpenVINO's side printed something else than its result ({error}): {text[-200:]!r}") from None
    if num_tokens != wanted:
        raise EngineFailed(f"OpenVINO GenAI gave {num_tokens} of {wanted} ids")
    return found


@dataclass(frozen=True)
class OpenVino:
    """OpenVINO GenAI on a model that it reads: a GGUF file, or a folder of its own format. With `prefix_cached` the first request
    of a load was answered before, so that a shared prefix is cached: without, requests that begin together each compute it."""

    python: Path
    model: Path
    threads: int
    tokens_per_step: int = TOKENS_PER_STEP
    prefix_cached: bool = False
    name: str = "OpenVINO GenAI"

    def __post_init__(self) -> None:
        find_program(self.python, HINT)

    def note(self) -> str:
        """What a reader of its figures must know."""
        version = output_of([str(self.python), "-c", VERSION]).strip()
        how = "each piece of its work was done once before it was timed, and loads reached it without HTTP"
        cached = "; before each load it had answered its first request" if self.prefix_cached else ""
        return f"OpenVINO GenAI {version} read {self.model.name}; {how}{cached}."

    def prefill(self) -> float:
        return lines.PROMPT_TOKENS / self._alike(1, lines.PROMPT_TOKENS, 1).all_first_s

    def decode(self) -> float:
        return _decode_rate(self._alike(1, lines.CONTEXT_TOKENS, lines.DECODE_STEPS + 1))

    def decode_batch(self) -> float:
        return _decode_rate(self._alike(lines.BATCH, lines.BATCH_CONTEXT_TOKENS, lines.BATCH_DECODE_STEPS + 1))

    def hold(self, load: lines.Load) -> float:
        requests = [_request(conversation.first) for conversation in load.conversations()]
        return self._run(requests, load.at_once, self.tokens_per_step, requests[: int(self.prefix_cached)]).duration_s

    def _alike(self, count: int, input_tokens: int, num_new: int) -> Heard:
        """Requests of random ids, all at once, with all prompts in one step."""
        chance = np.random.default_rng(0)
        requests = [(draw_ids(chance, input_tokens, lines.VOCAB_SIZE).tolist(), num_new) for _ in range(count)]
        return self._run(requests, count, count * input_tokens, [])

    def _run(self, requests: list[Request], at_once: int, tokens_per_step: int, known: list[Request]) -> Heard:
        """Kernels are compiled by shape, so the same work is done once before, with ids that these do not begin with."""
        task: dict[str, Any] = {
            "model": str(self.model),
            "threads": self.threads,
            "scheduler": {
                "max_num_batched_tokens": tokens_per_step,
                "cache_size": CACHE_GB,
                "dynamic_split_fuse": True,
                "enable_prefix_caching": True,
            },
            "at_once": at_once,
            "warm_up": [*((_others(ids), num_new) for ids, num_new in requests), *known],
            "requests": requests,
        }
        text = output_of([str(self.python), str(SCRIPT)], json.dumps(task))
        return heard(text, sum(num_new for _, num_new in requests))


def _request(turn: Turn) -> Request:
    if isinstance(turn.prompt, str):
        raise ConfigError("a load of text cannot be given to OpenVINO GenAI here; take one that is made of ids")
    return turn.prompt, turn.num_new


def _others(ids: list[int]) -> list[int]:
    """Other ids, equal ones for equal ones."""
    return into_vocabulary(np.array(ids, dtype=np.int32) + 1, lines.VOCAB_SIZE).tolist()


def _decode_rate(found: Heard) -> float:
    return found.tokens_since / (found.duration_s - found.all_first_s)
