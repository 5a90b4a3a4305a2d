"""Constraints on a real model: is every completion of its language, or was the constraint refused? And what do masks cost?

    python benchmarks/constraints.py --model smollm2-135m-instruct --schemas 300 --regexes 100 --grammars 50

Prints a table for docs/lab, and fails when a completion that was not cut off by its length is not of its language. Free prompts
run in the same batches and must come out as they do alone.
"""

from __future__ import annotations

import argparse
import re
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parent))
from constraint_cases import Case, ebnf_cases, regex_cases, schema_cases

from sapwood import LLM, SamplingParams
from sapwood.config.sections import GrammarSection
from sapwood.core.constraint import Constraint
from sapwood.core.plan import EngineLimits
from sapwood.errors import InvalidRequest, SapwoodError
from sapwood.offline import to_result
from sapwood.pump import Ticket
from sapwood.tokenizer.load import open_tokenizer
from sapwood.weights import catalog
from sapwood.worker.grammar_setup import open_backend

PROMPTS = {"json_schema": "An example in JSON:\n", "regex": "An example: ", "ebnf": "For example: "}
FREE = ("The capital of France is", "Once upon a time", "def main():")


@dataclass
class Tally:
    """What became of the cases of one kind."""

    counts: Counter[str] = field(default_factory=Counter)
    reasons: Counter[str] = field(default_factory=Counter)
    wrong: list[tuple[str, str]] = field(default_factory=list)


def run(llm: LLM, cases: Sequence[Case], max_new_tokens: int, temperature: float) -> tuple[dict[str, Tally], list[list[int]]]:
    """Complete every case, `FREE` beside them; the tallies by kind, and the free prompts' ids."""
    tallies: dict[str, Tally] = {}
    taken, params = [], []
    for index, case in enumerate(cases):
        constraint = Constraint(case.kind, case.text)  # type: ignore[arg-type]
        chosen = SamplingParams(max_new_tokens=max_new_tokens, temperature=temperature, seed=index, constraint=constraint)
        tally = tallies.setdefault(case.kind, Tally())
        try:
            llm.generate([[0]], SamplingParams(max_new_tokens=0, constraint=constraint))
        except InvalidRequest as error:
            tally.counts["refused"] += 1
            tally.reasons[re.sub(r"\d+", "N", error.message)[:120]] += 1
            continue
        taken.append(case)
        params.append(chosen)
    free = [SamplingParams(max_new_tokens=48, temperature=0.0)] * len(FREE)
    texts = [*FREE, *(PROMPTS[case.kind] for case in taken)]
    tickets = [llm.submit([llm.prompts.ids(text, 0)], [each]) for text, each in zip(texts, [*free, *params], strict=True)]
    for case, ticket in zip(taken, tickets[len(FREE) :], strict=True):
        note(tallies[case.kind], case, ticket)
    return tallies, [to_result(*ticket.future.result()).token_ids for ticket in tickets[: len(FREE)]]


def note(tally: Tally, case: Case, ticket: Ticket) -> None:
    """Judge one completion."""
    try:
        result = to_result(*ticket.future.result())
    except SapwoodError as error:
        tally.counts["failed"] += 1
        tally.wrong.append((case.text, error.message))
        return
    if result.finish_reason == "length":
        tally.counts["length"] += 1
        return
    try:
        is_valid = result.finish_reason == "stop" and case.check(result.text)
    except ValueError:
        is_valid = False
    tally.counts["valid" if is_valid else "wrong"] += 1
    if not is_valid:
        tally.wrong.append((case.text, result.text))


def measure(model: str, cases: Sequence[Case], max_tokens: int) -> dict[str, dict[str, float]]:
    """By kind: milliseconds to compile, microseconds to fill one mask and to take one id, along a random walk."""
    path = str(catalog.resolve(model))
    tokenizer = open_tokenizer(path)
    limits = EngineLimits(1, 2, 1, 1, tokenizer.vocab_size, tuple(tokenizer.eos_token_ids))
    started = time.perf_counter()
    backend = open_backend(GrammarSection("llguidance", True, True, 1), path, limits)
    costs: dict[str, dict[str, list[float]]] = {"vocabulary": {"compile_ms": [1e3 * (time.perf_counter() - started)]}}
    chance = np.random.default_rng(0)
    masks = np.zeros((1, (tokenizer.vocab_size + 31) // 32), dtype=np.uint32)
    for case in cases:
        cost = costs.setdefault(case.kind, {"compile_ms": [], "fill_us": [], "take_us": []})
        started = time.perf_counter()
        try:
            matcher = backend.compile(Constraint(case.kind, case.text)).start()  # type: ignore[arg-type]
        except InvalidRequest:
            continue
        cost["compile_ms"].append(1e3 * (time.perf_counter() - started))
        for _ in range(max_tokens):
            started = time.perf_counter()
            backend.fill([(matcher, 0)], masks)
            filled = time.perf_counter()
            allowed = np.flatnonzero(np.unpackbits(masks.view(np.uint8), bitorder="little"))
            if not len(allowed) or matcher.is_complete:
                break
            chosen = int(chance.choice(allowed))
            taking = time.perf_counter()
            matcher.forced()
            matcher.accept(chosen)
            cost["fill_us"].append(1e6 * (filled - started))
            cost["take_us"].append(1e6 * (time.perf_counter() - taking))
    return {
        kind: {f"{name} {word}": float(np.quantile(values, q)) for name, values in cost.items() if values
               for word, q in (("median", 0.5), ("p99", 0.99), ("max", 1.0))}
        for kind, cost in costs.items()
    }  # fmt: skip


def main() -> int:
    """1 when something was wrong."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2-135m-instruct")
    parser.add_argument("--schemas", type=int, default=300)
    parser.add_argument("--regexes", type=int, default=100)
    parser.add_argument("--grammars", type=int, default=50)
    parser.add_argument("--max-new-tokens", type=int, default=200)
    parser.add_argument("--temperature", type=float, default=0.8)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    cases = [
        *schema_cases(options.schemas, options.seed),
        *regex_cases(options.regexes, options.seed),
        *ebnf_cases(options.grammars, options.seed),
    ]
    with LLM(options.model, progress=False) as llm:
        alone = [llm.generate(text, SamplingParams(max_new_tokens=48, temperature=0.0))[0].token_ids for text in FREE]
        llm.flush_cache()
        tallies, beside = run(llm, cases, options.max_new_tokens, options.temperature)
    print(f"model {options.model}, seed {options.seed}, temperature {options.temperature}")
    for kind, tally in tallies.items():
        print(f"{kind:12}", dict(sorted(tally.counts.items())))
        for reason, count in tally.reasons.most_common():
            print(f"  {count:3} refused: {reason}")
        for text, completion in tally.wrong[:10]:
            print(f"  wrong: {text}\n      -> {completion!r}")
    print("free prompts unchanged:", beside == alone)
    for kind, cost in measure(options.model, cases, 64).items():
        print(f"{kind:12}", {name: round(value, 2) for name, value in cost.items()})
    return int(beside != alone or any(tally.wrong for tally in tallies.values()))


if __name__ == "__main__":
    sys.exit(main())
