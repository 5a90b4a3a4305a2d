#!/usr/bin/env python3
"""Sapwood and llama.cpp on the same GGUF file, in turn: benchmarks/compare.py --llama-bin DIR --model NAME|FILE.gguf

Both get the same threads and the same work: a prompt of 512 tokens, decoding one row, decoding 32 rows, and two loads over HTTP
that one load generator sends to either server. Sapwood's numbers are those of its whole worker loop (scheduler included),
llama.cpp's those of llama-bench and llama-batched-bench. Every measurement is a process of its own; who goes first alternates.
Prints ratios with medians and ranges, and writes them, with the command, the machine and the date, to docs/lab/DATE-compare.md.
"""

from __future__ import annotations

import argparse
import json
import shlex
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from sapwood.bench.conversations import Conversation, make_conversations
from sapwood.bench.http import endpoint
from sapwood.bench.latency import LOOP
from sapwood.bench.machine import machine, num_usable_cores
from sapwood.bench.measure import Spread, alternate, ratios, spread
from sapwood.bench.serve import measure_serve
from sapwood.bench.show import number
from sapwood.errors import ConfigError, EngineFailed, SapwoodError
from sapwood.observability.progress import Bars
from sapwood.simulate.workload import WorkloadOptions
from sapwood.weights import catalog

REPO = Path(__file__).parents[1]
OURS, THEIRS = "sapwood", "llama.cpp"
RUN_TIMEOUT_S, START_TIMEOUT_S = 1800.0, 120.0
PROMPT_TOKENS, CONTEXT_TOKENS, DECODE_STEPS, BATCH = 512, 16, 64, 32
BATCH_CONTEXT_TOKENS, BATCH_DECODE_STEPS = 64, 32
VOCAB_SIZE = 32000
SHARED = WorkloadOptions(num_requests=64, input_tokens=24, output_tokens=32, spread=0.0, num_prefixes=1, prefix_tokens=1000)
RANDOM = WorkloadOptions(num_requests=64, input_tokens=128, output_tokens=64, spread=0.0)
LOADS = {
    "HTTP, 64 x (1000 shared + 24) in, 32 out, 16 at a time": ("shared-prefix", SHARED, 16),
    "HTTP, 64 x 128 in, 64 out, 32 at a time": ("random", RANDOM, 32),
}
LLAMA_SERVER_FLAGS = "-np 32 --kv-unified -c 40960"

Case = Callable[[], dict[str, float]]


@dataclass(frozen=True)
class Line:
    """One row of the comparison: how each side is measured, and whether a larger number is the better one."""

    name: str
    unit: str
    more_is_better: bool
    ours: Case
    theirs: Case


@dataclass(frozen=True)
class Outcome:
    """What a line gave; `ratio` says how many times better Sapwood is."""

    line: Line
    ours: Spread
    theirs: Spread
    ratio: Spread


# -------------------------------------------------------------------------------------------------------- reading
def llama_bench_rate(text: str) -> float:
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


def our_rates(text: str) -> dict[str, float]:
    """Prompt and decode tokens per second in the output of `sapwood bench latency --json -`."""
    report = json.loads(text)
    prompt = report["batch"] * report["input_tokens"] / report["prefill_s"][LOOP]["median"]
    return {"prefill": prompt, "decode": report["batch"] / report["decode_step_s"][LOOP]["median"]}


# -------------------------------------------------------------------------------------------------------- running
def find_binary(folder: Path, name: str) -> Path:
    """A program of llama.cpp; raises ConfigError where it is missing."""
    path = folder / name
    if not path.is_file():
        raise ConfigError(f"there is no {name} in {folder}; build llama.cpp and give --llama-bin its build/bin folder")
    return path


def output_of(command: Sequence[str]) -> str:
    """Standard output; raises EngineFailed with the end of standard error."""
    done = subprocess.run(command, capture_output=True, text=True, timeout=RUN_TIMEOUT_S, stdin=subprocess.DEVNULL)
    if done.returncode:
        raise EngineFailed(f"{shlex.join(command[:3])} ... ended with {done.returncode}: {done.stderr[-500:].strip()}")
    return done.stdout


def sapwood(*words: str) -> list[str]:
    """A command line of Sapwood."""
    return [sys.executable, "-m", "sapwood.cli.main", *words]


@contextmanager
def running_server(command: Sequence[str], port: int, health: str) -> Iterator[str]:
    """Start a server, wait until it answers at `health`, stop it afterwards; yields its address."""
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT)
        try:
            deadline_s = time.monotonic() + START_TIMEOUT_S
            while not _answers(f"http://127.0.0.1:{port}{health}"):
                if process.poll() is not None or time.monotonic() > deadline_s:
                    log.seek(0)
                    raise EngineFailed(f"{command[0]} did not start: {log.read()[-500:].decode(errors='replace').strip()}")
                time.sleep(0.1)
            yield f"http://127.0.0.1:{port}"
        finally:
            process.terminate()
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=5):
            return True
    except (urllib.error.URLError, ConnectionError, TimeoutError):
        return False


def free_port() -> int:
    """A port that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


# ---------------------------------------------------------------------------------------------------------- lines
def engine_lines(folder: Path, file: Path, threads: int, isa: str) -> list[Line]:
    """Prompt, one row, 32 rows."""
    bench, batched = find_binary(folder, "llama-bench"), find_binary(folder, "llama-batched-bench")

    def ours(what: str, batch: int, input_tokens: int, output_tokens: int) -> dict[str, float]:
        sizes = ("--batch-size", str(batch), "--input-tokens", str(input_tokens), "--output-tokens", str(output_tokens))
        machine_words = ("--cpu-threads", str(threads), "--cpu-isa", isa)
        words = ("bench", "latency", str(file), *sizes, "--repeats", "1", *machine_words, "--json", "-")
        return {"value": our_rates(output_of(sapwood(*words)))[what]}

    def theirs(prompt: int, new: int) -> dict[str, float]:
        words = ("-m", str(file), "-t", str(threads), "-p", str(prompt), "-n", str(new), "-r", "1", "-o", "json")
        return {"value": llama_bench_rate(output_of([str(bench), *words]))}

    def theirs_batched() -> dict[str, float]:
        context = str(BATCH * (BATCH_CONTEXT_TOKENS + BATCH_DECODE_STEPS))
        sizes = ("-npp", str(BATCH_CONTEXT_TOKENS), "-ntg", str(BATCH_DECODE_STEPS), "-npl", str(BATCH))
        words = ("-m", str(file), "-t", str(threads), "-c", context, *sizes, "--output-format", "jsonl")
        return {"value": batched_bench_rate(output_of([str(batched), *words]))}

    return [
        Line(
            "prefill, 512 tokens",
            "tokens/s",
            True,
            lambda: ours("prefill", 1, PROMPT_TOKENS, 8),
            lambda: theirs(PROMPT_TOKENS, 0),
        ),
        Line(
            "decode, batch 1",
            "tokens/s",
            True,
            lambda: ours("decode", 1, CONTEXT_TOKENS, DECODE_STEPS),
            lambda: theirs(0, DECODE_STEPS),
        ),
        Line(
            "decode, batch 32",
            "tokens/s",
            True,
            lambda: ours("decode", BATCH, BATCH_CONTEXT_TOKENS, BATCH_DECODE_STEPS),
            theirs_batched,
        ),
    ]


def http_lines(folder: Path, file: Path, threads: int, isa: str, flags: str) -> list[Line]:
    """The two loads; total seconds, the servers started anew each time."""
    server = find_binary(folder, "llama-server")

    def ours(load: list[Conversation], name: str, at_once: int) -> dict[str, float]:
        port = free_port()
        words = ("serve", "--model", str(file), "--port", str(port), "--cpu-threads", str(threads), "--cpu-isa", isa)
        return duration(sapwood(*words), port, "/ready", (load, name, at_once))

    def theirs(load: list[Conversation], name: str, at_once: int) -> dict[str, float]:
        port = free_port()
        words = ("-m", str(file), "-t", str(threads), "--port", str(port), *shlex.split(flags))
        return duration([str(server), *words], port, "/health", (load, name, at_once))

    def line(title: str, name: str, options: WorkloadOptions, at_once: int) -> Line:
        load = make_conversations(name, options, VOCAB_SIZE, None)
        return Line(title, "s", False, lambda: ours(load, name, at_once), lambda: theirs(load, name, at_once))

    return [line(title, *what) for title, what in LOADS.items()]


def duration(command: list[str], port: int, health: str, what: tuple[list[Conversation], str, int]) -> dict[str, float]:
    """Total seconds of a load on a fresh server; raises EngineFailed when a request failed or was cut short."""
    load, name, at_once = what
    with running_server(command, port, health) as url:
        report = measure_serve(endpoint(url), None, name, load, at_once)
    wanted = sum(conversation.first.num_tokens_wanted for conversation in load)
    if report.num_failed or report.output_tokens != wanted:
        raise EngineFailed(
            f"{command[0]}: {report.num_failed} requests failed {report.errors}, {report.output_tokens} of {wanted} ids"
        )
    return {"value": report.duration_s}


def measure(line: Line, pairs: int) -> Outcome:
    """Both sides in turn."""
    found = alternate({OURS: line.ours, THEIRS: line.theirs}, pairs)
    ours, theirs = found[OURS]["value"], found[THEIRS]["value"]
    return Outcome(line, spread(ours), spread(theirs), ratios(ours, theirs) if line.more_is_better else ratios(theirs, ours))


# --------------------------------------------------------------------------------------------------------- report
def row(outcome: Outcome) -> str:
    """A row of the table, in Markdown."""
    cells = [f"{outcome.line.name} ({outcome.line.unit})"]
    for found, suffix in ((outcome.ours, ""), (outcome.theirs, ""), (outcome.ratio, " x")):
        cells.append(f"{number(found.median)}{suffix} ({number(found.least)} to {number(found.most)})")
    return "| " + " | ".join([*cells, str(outcome.ratio.count)]) + " |"


HEADER = f"| what | {OURS} | {THEIRS} | {OURS} is better by | pairs |\n|---|---|---|---|---|"


def page(rows: Sequence[str], file: Path, folder: Path, words: Sequence[str]) -> str:
    """The page for docs/lab; folders of this machine are not named."""
    facts = machine()
    hidden = {str(folder): "DIR", str(file): file.name}
    command = " ".join(["benchmarks/compare.py", *(hidden.get(word, word) for word in words)])
    return "\n".join(
        [
            f"# Sapwood and llama.cpp on {file.name}",
            "",
            f"{facts.date} UTC; {facts.cpu}, {facts.num_cores} cores; {facts.system}; Python {facts.python}.",
            f"Command: `{command}`.",
            "Medians (least to most) of alternating pairs; each measurement is a process of its own.",
            "",
            HEADER,
            *rows,
            "",
        ]
    )


def arguments(words: Sequence[str] | None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--llama-bin", type=Path, required=True, metavar="DIR", help="folder of llama-bench and the others")
    parser.add_argument("--model", default="smollm2-135m-instruct", help="of the catalog, or a GGUF file [%(default)s]")
    parser.add_argument("--threads", type=int, default=num_usable_cores(), help="of both [%(default)s]")
    parser.add_argument("--isa", default="auto", help="of our kernels, for a llama.cpp that was built for less [%(default)s]")
    parser.add_argument("--pairs", type=int, default=5, help="of the engine lines [%(default)s]")
    parser.add_argument("--http-pairs", type=int, default=3, help="of the HTTP lines; 0 leaves them out [%(default)s]")
    parser.add_argument("--llama-server-flags", default=LLAMA_SERVER_FLAGS, metavar="FLAGS", help="[%(default)s]")
    parser.add_argument("--out", type=Path, default=REPO / "docs" / "lab", metavar="FOLDER", help="of the page")
    return parser.parse_args(words)


def run(args: argparse.Namespace, words: Sequence[str]) -> Path:
    """Measure everything, print as it comes, write the page; returns where."""
    if args.pairs < 1 or args.http_pairs < 0:
        raise ConfigError("--pairs must be at least 1, --http-pairs at least 0")
    with Bars() as bars:
        file = Path(catalog.resolve(args.model, bars))
    if file.is_dir():
        raise ConfigError(f"{args.model} is a folder; llama.cpp needs a GGUF file")
    lines = [(line, args.pairs) for line in engine_lines(args.llama_bin, file, args.threads, args.isa)]
    if args.http_pairs:
        http = http_lines(args.llama_bin, file, args.threads, args.isa, args.llama_server_flags)
        lines += [(line, args.http_pairs) for line in http]
    rows = list[str]()
    print(HEADER, flush=True)
    for line, pairs in lines:
        rows.append(row(measure(line, pairs)))
        print(rows[-1], flush=True)
    path: Path = args.out / f"{datetime.now(UTC):%Y-%m-%d}-compare-{file.stem.lower()}-{args.isa}.md"
    path.write_text(page(rows, file, args.llama_bin, words), encoding="utf-8")
    return path


def main(words: Sequence[str] | None = None) -> int:
    """Exit code 0, or 1 with one line on standard error."""
    args = arguments(words)
    try:
        print(f"written to {run(args, sys.argv[1:] if words is None else words)}")
    except SapwoodError as error:
        print(f"error: {error.message}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
