#!/usr/bin/env python3
"""lm-eval against Sapwood, and its log-likelihoods against transformers: benchmarks/evaluate.py --lm-eval PATH [--model NAME]

Runs three small local tasks end to end (log-likelihoods and generation through /v1/completions, generation through
/v1/chat/completions) on each kernel backend (native with activations of 8 and of 16 bits), then computes the same
log-likelihoods with transformers on the same GGUF file in float32 and prints how far they are apart. `PATH` is the lm_eval
executable of an environment of its own, where `pip install "lm-eval[api]"` has put it.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sapwood.testing.server_process import ServerProcess
from sapwood.weights import catalog

TASKS = Path(__file__).parent / "evaluation"
TIMEOUT_S = 1200.0
FLAGS = {
    "reference": ["--kernel-backend", "reference"],
    "native": ["--kernel-backend", "native"],
    "native-16": ["--kernel-backend", "native", "--activation-bits", "16"],
}


@dataclass(frozen=True)
class Scored:
    """One log-likelihood as lm-eval received it."""

    context: str
    continuation: str
    logprob: float
    is_greedy: bool


@dataclass(frozen=True)
class Distance:
    """How far a backend's log-likelihoods are from the oracle's. Errors per token, in nats; `largest_flag_gap`: how far apart the
    oracle sees its two candidates where the flags of greediness differ."""

    num_pairs: int
    num_tokens: int
    largest_pair: float
    mean_per_token: float
    largest_per_token: float
    num_flags_differ: int
    largest_flag_gap: float


def main(arguments: Sequence[str] | None = None) -> int:
    """The exit status: 1 when a task did not run, or the reference backend is more than 1e-2 away from the oracle, or a flag of
    greediness differs there or with activations of 16 bits."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--lm-eval", required=True, metavar="PATH")
    parser.add_argument("--model", default="smollm2-135m-instruct")
    parser.add_argument("--backends", nargs="+", choices=list(FLAGS), default=list(FLAGS))
    options = parser.parse_args(arguments)
    file, failed = catalog.resolve(options.model), False
    for backend in options.backends:
        with running(options.model, backend) as server:
            scored = evaluate(options.lm_eval, server)
        distance = compare(scored, file)
        print(f"{backend}: {distance}")
        failed |= backend == "reference" and distance.largest_pair > 1e-2
        failed |= backend != "native" and distance.num_flags_differ > 0
    return int(failed)


@contextlib.contextmanager
def running(model: str, backend: str) -> Iterator[ServerProcess]:
    """The model behind a server of that backend."""
    flags = [*FLAGS[backend], "--context-length", "1024"]
    with tempfile.TemporaryDirectory() as folder, ServerProcess(model, Path(folder), flags) as server:
        yield server


def evaluate(lm_eval: str, server: ServerProcess) -> list[Scored]:
    """Run the tasks; what was scored."""
    completions = f"model={server.model},base_url={server.base_url}/completions,num_concurrent=4,max_retries=1"
    chat = f"model={server.model},base_url={server.base_url}/chat/completions,num_concurrent=4,max_retries=1"
    scored = run_task(lm_eval, "local-completions", completions, "sapwood_choices")
    run_task(lm_eval, "local-completions", completions, "sapwood_sequences")
    run_task(lm_eval, "local-chat-completions", chat, "sapwood_chat", "--apply_chat_template")
    return [
        Scored(*argument[:2], *response)
        for sample in scored
        for argument, response in zip(arguments_of(sample), responses_of(sample), strict=True)
    ]


def run_task(lm_eval: str, model: str, model_args: str, task: str, *more: str) -> list[dict[str, Any]]:
    """One task's logged samples; raises when lm-eval fails."""
    with tempfile.TemporaryDirectory() as folder:
        command = [lm_eval, "run", "--model", model, "--model_args", model_args, "--tasks", task, "--include_path", str(TASKS)]
        command += ["--batch_size", "4", "--output_path", folder, "--log_samples", *more]
        environment = {**os.environ, "OPENAI_API_KEY": "none", "HF_HUB_OFFLINE": "1", "HF_DATASETS_CACHE": f"{folder}/cache"}
        environment.pop("PYTHONPATH", None)
        done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, env=environment, cwd=TASKS)
        if done.returncode:
            raise SystemExit(f"{' '.join(command)}\n{done.stderr[-3000:]}")
        print(
            f"{task}: " + "; ".join(line.strip() for line in done.stdout.splitlines() if "|acc" in line or "|exact_match" in line)
        )
        [samples] = Path(folder).rglob(f"samples_{task}_*.jsonl")
        return [json.loads(line) for line in samples.read_text().splitlines()]


def arguments_of(sample: dict[str, Any]) -> list[list[str]]:
    """The (context, continuation) pairs of a sample."""
    found = sample["arguments"]
    return [[value["arg_0"], value["arg_1"]] for value in found.values()] if isinstance(found, dict) else found


def responses_of(sample: dict[str, Any]) -> list[tuple[float, bool]]:
    """lm-eval logs (log-likelihood, is greedy) pairs, as text or values, each in a list of its own."""
    pairs = [response[0] if isinstance(response[0], list) else response for response in sample["resps"]]
    return [(float(value), str(flag) == "True") for value, flag in pairs]


def compare(scored: Sequence[Scored], file: Path) -> Distance:
    """The distance to transformers' log-likelihoods of the same pairs."""
    import torch
    import transformers

    torch.set_num_threads(2)
    model = transformers.AutoModelForCausalLM.from_pretrained(file.parent, gguf_file=file.name, dtype=torch.float32).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name)
    errors, per_token, num_tokens, flag_gaps = [], [], 0, [0.0]
    for pair in scored:
        context = tokenizer(pair.context).input_ids
        whole = tokenizer(pair.context + pair.continuation).input_ids
        with torch.inference_mode():
            logprobs = model(torch.tensor([whole])).logits[0].log_softmax(-1)[len(context) - 1 : -1]
        targets = torch.tensor(whole[len(context) :])
        expected = float(logprobs.gather(1, targets[:, None]).sum())
        errors.append(abs(expected - pair.logprob))
        per_token.append(errors[-1] / len(targets))
        num_tokens += len(targets)
        if bool((logprobs.argmax(dim=1) == targets).all()) != pair.is_greedy:
            flag_gaps.append(gap_of(logprobs, targets))
    mean = sum(per_token) / len(per_token)
    return Distance(len(scored), num_tokens, max(errors), mean, max(per_token), len(flag_gaps) - 1, max(flag_gaps))


def gap_of(logprobs: Any, targets: Any) -> float:
    """How near the rows are to the other answer about greediness: for a greedy one the least lead over the second best, for
    another the largest distance of a target to the best."""
    behind = logprobs.max(dim=1).values - logprobs.gather(1, targets[:, None])[:, 0]
    if float(behind.max()) > 0:
        return float(behind.max())
    best = logprobs.topk(2, dim=1).values
    return float((best[:, 0] - best[:, 1]).min())


if __name__ == "__main__":
    sys.exit(main())
