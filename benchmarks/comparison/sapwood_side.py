"""Sapwood's side: `sapwood bench latency`, which is the whole worker loop, and `sapwood serve` under load over HTTP.

Owns its command lines and what its report means. Invariant: what is measured includes the scheduler, over HTTP everything.
"""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path

from comparison import lines
from comparison.processes import free_port, output_of, seconds_over_http
from sapwood.bench.latency import LOOP

PROMPT_ONLY_STEPS = 8
"""Decode steps of the run whose prompt is measured."""


def command(*words: str) -> list[str]:
    """A command line of Sapwood."""
    return [sys.executable, "-m", "sapwood.cli.main", *words]


def rates(text: str) -> dict[str, float]:
    """Prompt and decode tokens per second in the output of `sapwood bench latency --json -`."""
    report = json.loads(text)
    prompt = report["batch"] * report["input_tokens"] / report["prefill_s"][LOOP]["median"]
    return {"prefill": prompt, "decode": report["batch"] / report["decode_step_s"][LOOP]["median"]}


@dataclass(frozen=True)
class Sapwood:
    """Sapwood on a GGUF file."""

    file: Path
    threads: int
    isa: str
    name: str = "Sapwood"

    def prefill(self) -> float:
        return self._rates(1, lines.PROMPT_TOKENS, PROMPT_ONLY_STEPS)["prefill"]

    def decode(self) -> float:
        return self._rates(1, lines.CONTEXT_TOKENS, lines.DECODE_STEPS)["decode"]

    def decode_batch(self) -> float:
        return self._rates(lines.BATCH, lines.BATCH_CONTEXT_TOKENS, lines.BATCH_DECODE_STEPS)["decode"]

    def hold(self, load: lines.Load) -> float:
        port = free_port()
        words = ("serve", "--model", str(self.file), "--port", str(port), *self._machine_words())
        return seconds_over_http(command(*words), port, "/ready", load)

    def _machine_words(self) -> tuple[str, ...]:
        return ("--cpu-threads", str(self.threads), "--cpu-isa", self.isa)

    def _rates(self, batch: int, input_tokens: int, output_tokens: int) -> dict[str, float]:
        sizes = ("--batch-size", str(batch), "--input-tokens", str(input_tokens), "--output-tokens", str(output_tokens))
        words = ("bench", "latency", str(self.file), *sizes, "--repeats", "1", *self._machine_words(), "--json", "-")
        return rates(output_of(command(*words)))
