#!/usr/bin/env python3
"""Programs that share prefixes, against the same calls one by one: benchmarks/programs.py --llama-bin DIR --model NAME|FILE.gguf

Five programs of sapwood.lang run on a Sapwood server, on one with its prefix cache off, and on llama-server, which gets each
generation as a request of its own. All servers have the same file, threads and number of requests at once; prompts, branches and
output lengths are fixed (below), and every side continues the text as it stands. Prints seconds, ratios and hit rates beside the
best possible, and writes them to docs/lab/.
"""

from __future__ import annotations

import argparse
import shlex
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from comparison.processes import find_program, free_port, running_server
from comparison.sapwood_side import command

import sapwood.lang as sgl
from sapwood.bench.machine import machine, num_usable_cores
from sapwood.errors import ConfigError, SapwoodError
from sapwood.lang.backends.base import Generation, Job, OnText
from sapwood.lang.settings import GenSettings
from sapwood.lang.transcript import Prompt
from sapwood.observability.progress import Bars
from sapwood.weights import catalog

REPO = Path(__file__).parents[1]
AT_ONCE = 16
LLAMA_FLAGS = f"-np {AT_ONCE} --kv-unified -c 32768"
WORDS = (
    "river", "stone", "paper", "window", "garden", "winter", "summer", "bread",
    "horse", "market", "letter", "bridge", "forest", "candle", "mirror", "village",
)  # fmt: skip
FIXED: dict[str, Any] = {"temperature": 0, "ignore_eos": True}


def text(seed: int, num_words: int) -> str:
    """Words that are the same in every run, about one token each."""
    return " ".join(WORDS[(seed * 7 + index * index * 3 + index) % len(WORDS)] for index in range(num_words))


@sgl.function
def few_shot(s: Any, item: int) -> None:
    s += "".join(f"Text: {text(shot, 40)}\nLabel: {WORDS[shot]}\n" for shot in range(16))
    s += f"Text: {text(100 + item, 24)}\nLabel:" + sgl.gen("label", max_tokens=4, **FIXED)


@sgl.function
def tree(s: Any, item: int) -> None:
    s += f"Task {item}: {text(200 + item, 500)}\n"
    for level in range(2):
        branches = s.fork(6)
        branches += lambda index, level=level: f"Thought {level}.{index}:" + sgl.gen("thought", max_tokens=16, **FIXED)
        branches.join()
        s += f"Thought {level}:" + s["thought"][level] + "\n"


@sgl.function
def judge(s: Any, item: int) -> None:
    s += f"Essay {item}: {text(300 + item, 800)}\n"
    forks = s.fork(8)
    forks += lambda index: f"Its {WORDS[index]}:" + sgl.gen("remark", max_tokens=16, **FIXED)
    forks.join()


@sgl.function
def talk(s: Any, item: int) -> None:
    s += sgl.system(f"Conversation {item}. " + text(400 + item, 300))
    for turn in range(8):
        s += sgl.user(text(500 + 10 * item + turn, 60))
        s += sgl.assistant(sgl.gen(f"answer_{turn}", max_tokens=12, **FIXED))


@sgl.function
def record(s: Any, item: int) -> None:
    s += "Make a record of the text.\n" + "".join(f'Text: {text(600 + n, 30)}\n{{"a": "{WORDS[n]}"}}\n' for n in range(10))
    s += f"Text: {text(700 + item, 60)}\n" + "{"
    for name in ("who", "what", "where", "when", "why"):
        s += f'"{name}": "' + sgl.gen(name, max_tokens=5, **FIXED) + '", '


@dataclass(frozen=True)
class Workload:
    """A program, how many of it, and its sizes in words."""

    program: sgl.Program
    count: int
    items: str
    sizes: str

    def part(self, share: float) -> Workload:
        """The same with a share of the items, one at least."""
        return replace(self, count=max(1, round(self.count * share)))


WORKLOADS = {
    "few-shot": Workload(few_shot, 32, "items", "16 shots of 44 words shared, 24 own; 4 tokens out"),
    "tree of thought": Workload(tree, 2, "tasks", "500 words each; 2 levels of 6 branches; 16 tokens out each"),
    "judge with fork": Workload(judge, 4, "essays", "800 words each; 8 branches each; 16 tokens out each"),
    "multi-turn": Workload(talk, 4, "conversations", "300 words of system, 8 turns of 60; 12 tokens out each"),
    "JSON": Workload(record, 16, "items", "10 shots of 32 words shared, 60 own; 5 fields of 5 tokens"),
}


@dataclass
class Recording:
    """A backend that remembers what was asked and answered, in the order of asking."""

    inner: Any
    calls: list[tuple[str, list[Generation]]] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)
    takes_messages: bool = False

    @property
    def marks(self) -> Any:
        return self.inner.marks

    @property
    def num_programs(self) -> int:
        return AT_ONCE

    def generate(self, prompt: Prompt, settings: GenSettings, on_text: OnText | None) -> Job[list[Generation]]:
        samples: list[Generation] = []
        with self.lock:
            self.calls.append((prompt.text, samples))
        job: Job[list[Generation]] = self.inner.generate(prompt, settings, on_text)
        job.future.add_done_callback(lambda future: samples.extend(future.result() if not future.exception() else ()))
        return job

    def score(self, prompt: Prompt, choices: Sequence[str], unconditional: bool) -> Any:
        return self.inner.score(prompt, choices, unconditional)

    def cache_prefix(self, prompt: Prompt) -> None:
        self.calls.append((prompt.text, [Generation("")]))
        self.inner.cache_prefix(prompt)

    def flush_cache(self) -> bool:
        return bool(self.inner.flush_cache())

    def get_server_info(self) -> dict[str, Any]:
        return dict(self.inner.get_server_info())


@dataclass(frozen=True)
class Run:
    """Seconds, and of the prompt tokens the share that was cached and the share that could have been."""

    seconds: float
    hit_rate: float
    best_rate: float


def run_once(workload: Workload, backend: Any, tokenize: Callable[[str], list[int]] | None) -> Run:
    """Run a workload; raises what failed. Hit rates only with `tokenize`."""
    recording = Recording(backend)
    started = time.perf_counter()
    states = workload.program.run_batch([{"item": item} for item in range(workload.count)], backend=recording)
    seconds = time.perf_counter() - started
    for state in states:
        if (error := state.error()) is not None:
            raise error
    if tokenize is None:
        return Run(seconds, 0.0, 0.0)
    calls = [(tokenize(prompt), tokenize(samples[0].text)) for prompt, samples in recording.calls]
    cached = sum(samples[0].meta.get("cached_tokens", 0) for _, samples in recording.calls)
    return Run(seconds, cached / sum(len(prompt) for prompt, _ in calls), best_rate(calls))


def best_rate(calls: Sequence[tuple[list[int], list[int]]]) -> float:
    """The share of prompt tokens that a cache without limits would have held; each prompt's last token is always computed."""
    root: dict[int, Any] = {}
    total = computed = 0
    for prompt, output in calls:
        node, is_new = root, 0
        for token in prompt:
            is_new += token not in node
            node = node.setdefault(token, {})
        total, computed = total + len(prompt), computed + max(is_new, 1)
        for token in output:
            node = node.setdefault(token, {})
    return 1 - computed / total


@contextmanager
def our_server(file: Path, threads: int, *options: str) -> Iterator[sgl.RuntimeEndpoint]:
    """A Sapwood server."""
    port = free_port()
    words = ("serve", "--model", str(file), "--port", str(port), "--cpu-threads", str(threads))
    with running_server(command(*words, "--max-running-requests", str(AT_ONCE), *options), port, "/ready") as url:
        yield sgl.RuntimeEndpoint(url, chat_template_name="chatml", token_healing=False)


@contextmanager
def llama_server(folder: Path, file: Path, threads: int, flags: str) -> Iterator[sgl.OpenAI]:
    """llama-server."""
    port = free_port()
    program = folder / "llama-server"
    find_program(program, "build it (docs/guide/benchmarking.md)")
    words = [str(program), "-m", str(file), "-t", str(threads), "--port", str(port)]
    with running_server([*words, *shlex.split(flags)], port, "/health") as url:
        yield sgl.OpenAI("any", is_chat_model=False, base_url=f"{url}/v1", api_key="none", max_retries=0)


def measure(args: argparse.Namespace, file: Path, workloads: dict[str, Workload]) -> dict[str, dict[str, Run]]:
    """Every workload on every side."""
    found: dict[str, dict[str, Run]] = {name: {} for name in workloads}
    with our_server(file, args.threads) as backend:
        for name, workload in workloads.items():
            for _ in range(args.repeats):
                backend.flush_cache()
                run = run_once(workload, backend, lambda words: backend.ids_of_text(words) if words else [])
                found[name]["shared"] = min(run, found[name].get("shared", run), key=lambda r: r.seconds)
                tell(name, "shared", run)
    with our_server(file, args.threads, "--disable-radix-cache") as backend:
        for name, workload in workloads.items():
            found[name]["off"] = tell(name, "cache off", run_once(workload, backend, None))
    if args.llama_bin is not None:
        with llama_server(args.llama_bin, file, args.threads, args.llama_flags) as other:
            for name, workload in workloads.items():
                found[name]["llama"] = tell(name, "llama-server", run_once(workload, other, None))
    return found


def tell(name: str, side: str, run: Run) -> Run:
    """Show a run when it has ended: the page is written when all have."""
    print(f"{name}, {side}: {run.seconds:.2f} s", file=sys.stderr, flush=True)
    return run


HEADER = (
    "| program | sizes | Sapwood (s) | cache off (s) | ratio | llama-server (s) | ratio | hit rate | best possible |\n"
    "|---|---|---|---|---|---|---|---|---|"
)


def row(name: str, workload: Workload, runs: dict[str, Run]) -> str:
    """A row of the table, in Markdown."""
    shared, off, llama = runs["shared"], runs["off"], runs.get("llama")
    theirs = ("-", "-") if llama is None else (f"{llama.seconds:.2f}", f"{llama.seconds / shared.seconds:.1f} x")
    sizes = f"{workload.count} {workload.items}; {workload.sizes}"
    cells = (name, sizes, f"{shared.seconds:.2f}", f"{off.seconds:.2f}", f"{off.seconds / shared.seconds:.1f} x")
    return "| " + " | ".join((*cells, *theirs, f"{shared.hit_rate:.1%}", f"{shared.best_rate:.1%}")) + " |"


def arguments(words: Sequence[str] | None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--llama-bin", type=Path, metavar="DIR", help="folder of llama-server; left out without it")
    parser.add_argument("--llama-flags", default=LLAMA_FLAGS, metavar="FLAGS", help="of llama-server [%(default)s]")
    parser.add_argument("--model", default="smollm2-135m-instruct", help="of the catalog, or a GGUF file [%(default)s]")
    parser.add_argument("--threads", type=int, default=num_usable_cores(), help="of every server [%(default)s]")
    parser.add_argument("--only", choices=WORKLOADS, help="one program")
    parser.add_argument("--share", type=float, default=1.0, help="of the items, for large models [%(default)s]")
    parser.add_argument("--repeats", type=int, default=2, help="on the server with the cache; the best counts [%(default)s]")
    parser.add_argument("--out", type=Path, default=REPO / "docs" / "lab", metavar="FOLDER", help="of the page")
    return parser.parse_args(words)


def run(args: argparse.Namespace, words: Sequence[str]) -> Path:
    """Measure everything, write the page; returns where."""
    with Bars() as bars:
        file = Path(catalog.resolve(args.model, bars))
    if file.is_dir():
        raise ConfigError(f"{args.model} is a folder; llama.cpp needs a GGUF file")
    workloads = {name: workload.part(args.share) for name, workload in WORKLOADS.items() if args.only in (None, name)}
    rows = [row(name, workloads[name], runs) for name, runs in measure(args, file, workloads).items()]
    facts = machine()
    hidden = {str(args.llama_bin): "DIR", str(file): file.name}
    lines = [
        f"# Programs that share prefixes, on {file.name}",
        "",
        f"{facts.date} UTC; {facts.cpu}, {facts.num_cores} cores; {facts.system}; Python {facts.python}.",
        f"Command: `benchmarks/programs.py {' '.join(hidden.get(word, word) for word in words)}`.",
        f"At most {AT_ONCE} requests at once everywhere; llama-server with `{args.llama_flags}`.",
        "",
        HEADER,
        *rows,
        "",
    ]
    print("\n".join(lines))
    path: Path = args.out / f"{datetime.now(UTC):%Y-%m-%d}-programs-{file.stem.lower()}.md"
    path.write_text("\n".join(lines), encoding="utf-8")
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
