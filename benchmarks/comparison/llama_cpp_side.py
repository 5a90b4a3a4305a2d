"""llama.cpp's side: llama-bench, llama-batched-bench and llama-server of one build.

Owns their command lines and what they print. Invariant: what is printed otherwise than expected raises EngineFailed.
"""

from __future__ import annotations

import json
import shlex
from dataclasses import dataclass
from pathlib import Path

from comparison import lines
from comparison.processes import find_program, free_port, output_of, seconds_over_http
from sapwood.errors import EngineFailed

BENCH, BATCHED_BENCH, SERVER = "llama-bench", "llama-batched-bench", "llama-server"
SERVER_FLAGS = "-np 32 --kv-unified -c 40960"
HINT = "build llama.cpp and give --llama-bin its build/bin folder"


def bench_rate(text: str) -> float:
    """Tokens per second in the output of `llama-bench -o json` with one test."""
    try:
        (test,) = json.loads(text)
        return float(test["avg_ts"])
    except (ValueError, KeyError, TypeError) as error:
        raise EngineFailed(f"llama-bench printed something else than one result in JSON ({error}): {text[:200]!r}") from None


def batched_bench_rate(text: str) -> float:
    """Decoded tokens per second in the output of `llama-batched-bench --output-format jsonl` with one test."""
    for line in text.splitlines():
        if line.startswith("{"):
            try:
                return float(json.loads(line)["speed_tg"])
            except (ValueError, KeyError, TypeError) as error:
                raise EngineFailed(f"llama-batched-bench printed a line that cannot be read ({error}): {line[:200]!r}") from None
    raise EngineFailed(f"llama-batched-bench printed no result: {text[-200:]!r}")


@dataclass(frozen=True)
class LlamaCpp:
    """llama.cpp's programs in `folder` on a GGUF file."""

    folder: Path
    file: Path
    threads: int
    server_flags: str = SERVER_FLAGS
    name: str = "llama.cpp"

    def __post_init__(self) -> None:
        for program in (BENCH, BATCHED_BENCH, SERVER):
            find_program(self.folder / program, HINT)

    def prefill(self) -> float:
        return self._bench(lines.PROMPT_TOKENS, 0)

    def decode(self) -> float:
        return self._bench(0, lines.DECODE_STEPS)

    def decode_batch(self) -> float:
        context, steps, rows = lines.BATCH_CONTEXT_TOKENS, lines.BATCH_DECODE_STEPS, lines.BATCH
        sizes = ("-c", str(rows * (context + steps)), "-npp", str(context), "-ntg", str(steps), "-npl", str(rows))
        words = ("-m", str(self.file), "-t", str(self.threads), *sizes, "--output-format", "jsonl")
        return batched_bench_rate(output_of([str(self.folder / BATCHED_BENCH), *words]))

    def hold(self, load: lines.Load) -> float:
        port = free_port()
        words = ("-m", str(self.file), "-t", str(self.threads), "--port", str(port), *shlex.split(self.server_flags))
        return seconds_over_http([str(self.folder / SERVER), *words], port, "/health", load)

    def _bench(self, prompt: int, new: int) -> float:
        words = ("-m", str(self.file), "-t", str(self.threads), "-p", str(prompt), "-n", str(new), "-r", "1", "-o", "json")
        return bench_rate(output_of([str(self.folder / BENCH), *words]))
