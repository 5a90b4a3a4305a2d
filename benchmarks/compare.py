#!/usr/bin/env python3
"""Sapwood and other engines on the same weights, in turn:

    benchmarks/compare.py --llama-bin DIR --openvino-python PYTHON [--model NAME|FILE.gguf] [--only TEXT]

All get the same threads and the same work: a prompt of 512 tokens, decoding one row, decoding 32 rows, and two loads. Sapwood's
numbers are those of its whole worker loop (scheduler included), llama.cpp's those of llama-bench and llama-batched-bench; loads
reach either over HTTP, from one load generator. OpenVINO GenAI has no server: its continuous batching answers the same requests
in its own process. Every measurement is a process of its own; who goes first alternates. Prints ratios with medians and ranges,
and writes them, with the command, the machine and the date, to docs/lab/DATE-compare-MODEL-ISA.md.
"""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from comparison.lines import HEADER, Line, Side, engine_lines, load_lines, measure, row
from comparison.llama_cpp_side import SERVER_FLAGS, LlamaCpp
from comparison.openvino_side import TOKENS_PER_STEP, OpenVino
from comparison.sapwood_side import Sapwood

from sapwood.bench.machine import machine, num_usable_cores
from sapwood.errors import ConfigError, SapwoodError
from sapwood.observability.progress import Bars
from sapwood.weights import catalog

REPO = Path(__file__).parents[1]


def page(rows: Sequence[str], file: Path, notes: Sequence[str], words: Sequence[str]) -> str:
    """The page for docs/lab; folders of this machine are not named."""
    facts = machine()
    command = shlex.join(["benchmarks/compare.py", *(Path(word).name if "/" in word else word for word in words)])
    return "\n".join(
        [
            f"# Sapwood and other engines on {file.name}",
            "",
            f"{facts.date} UTC; {facts.cpu}, {facts.num_cores} cores; {facts.system}; Python {facts.python}.",
            f"Command (folders left out): `{command}`.",
            "Medians (least to most) of alternating pairs; each measurement is a process of its own.",
            *notes,
            "",
            HEADER,
            *rows,
            "",
        ]
    )


def arguments(words: Sequence[str] | None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2-135m-instruct", help="of the catalog, or a GGUF file [%(default)s]")
    parser.add_argument("--threads", type=int, default=num_usable_cores(), help="of all [%(default)s]")
    parser.add_argument("--isa", default="auto", help="of our kernels, for a llama.cpp that was built for less [%(default)s]")
    parser.add_argument("--pairs", type=int, default=5, help="of the engine lines; 0 leaves them out [%(default)s]")
    parser.add_argument("--http-pairs", type=int, default=3, help="of the loads; 0 leaves them out [%(default)s]")
    parser.add_argument("--only", default="", metavar="TEXT", help="measure lines whose name contains it, such as `shared`")
    parser.add_argument("--out", type=Path, default=REPO / "docs" / "lab", metavar="FOLDER", help="of the page")
    group = parser.add_argument_group("llama.cpp")
    group.add_argument("--llama-bin", type=Path, metavar="DIR", help="folder of llama-bench and the others")
    group.add_argument("--llama-server-flags", default=SERVER_FLAGS, metavar="FLAGS", help="[%(default)s]")
    group = parser.add_argument_group("OpenVINO GenAI")
    group.add_argument("--openvino-python", type=Path, metavar="FILE", help="Python of an environment with openvino-genai")
    group.add_argument(
        "--openvino-model",
        type=Path,
        metavar="PATH",
        help="GGUF file or folder in its format, where it should not read --model's",
    )
    group.add_argument(
        "--openvino-step-tokens", type=int, default=TOKENS_PER_STEP, metavar="INT", help="most tokens of one step [%(default)s]"
    )
    group.add_argument(
        "--openvino-prefix-cached",
        action="store_true",
        help="it has answered the first request of a load before, Sapwood has not",
    )
    return parser.parse_args(words)


def llama_cpp(args: argparse.Namespace, file: Path) -> LlamaCpp | None:
    """That side, where it is asked for."""
    return LlamaCpp(args.llama_bin, file, args.threads, args.llama_server_flags) if args.llama_bin else None


def openvino(args: argparse.Namespace, file: Path) -> OpenVino | None:
    """That side, where it is asked for."""
    if not args.openvino_python:
        return None
    model, step = args.openvino_model or file, args.openvino_step_tokens
    return OpenVino(args.openvino_python, model, args.threads, step, args.openvino_prefix_cached)


def chosen(ours: Side, others: Sequence[Side], args: argparse.Namespace) -> list[tuple[Line, int]]:
    """The lines to measure, with their numbers of pairs; raises ConfigError when there are none."""
    if args.pairs < 0 or args.http_pairs < 0:
        raise ConfigError("--pairs and --http-pairs must be at least 0")
    if not others:
        raise ConfigError("there is nothing to compare with; give --llama-bin, --openvino-python, or both")
    found = list[tuple[Line, int]]()
    for theirs in others:
        for lines, pairs in ((engine_lines(ours, theirs), args.pairs), (load_lines(ours, theirs), args.http_pairs)):
            found += [(line, pairs) for line in lines if pairs and args.only in line.name]
    if not found:
        raise ConfigError("no line is left to measure; look at --only, --pairs and --http-pairs")
    return found


def run(args: argparse.Namespace, words: Sequence[str]) -> Path:
    """Measure everything, print as it comes, write the page; returns where."""
    with Bars() as bars:
        file = Path(catalog.resolve(args.model, bars))
    if file.is_dir():
        raise ConfigError(f"{args.model} is a folder; a comparison needs a GGUF file")
    llama, vino = llama_cpp(args, file), openvino(args, file)
    lines = chosen(Sapwood(file, args.threads, args.isa), [side for side in (llama, vino) if side], args)
    notes = [vino.note()] if vino else []
    args.out.mkdir(parents=True, exist_ok=True)  # before minutes are spent on what goes there
    rows = list[str]()
    print(HEADER, flush=True)
    for line, pairs in lines:
        rows.append(row(measure(line, pairs)))
        print(rows[-1], flush=True)
    path: Path = args.out / f"{datetime.now(UTC):%Y-%m-%d}-compare-{file.stem.lower()}-{args.isa}.md"
    path.write_text(page(rows, file, notes, words), encoding="utf-8")
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
