#!/usr/bin/env python3
"""Write tests/data/choices/<model>.json: what transformers makes of choices, in float32, from a GGUF file of the catalog.

Usage: make_choice_outputs.py NAME=FILE.gguf [--out DIR] [--threads N]

Each case is a text and its choices. Text and choice are tokenised as one; a choice's log-probabilities are those of its tokens
from the first position on at which any of the case's prompts differs from the text alone.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import AutoModelForCausalLM, AutoTokenizer

CASES = [
    ("The capital of France is", [" London", " Paris", " Berlin"]),
    ("The opposite of hot is", [" cold", " warm", " a bicycle", " ice-cold water"]),
    ("I like ", ["cats", "42", "the sea very much"]),
    ("Review: The soup was cold and the waiter rude. Mood:", [" positive", " negative"]),
    ("2 + 2 = ", ["4", "5", "22"]),
    ("New", [" York", " York City", " Zealand"]),
]


@torch.inference_mode()
def logprobs(model: Any, ids: list[int], start: int) -> list[float]:
    """Of ids[start:], given what is before each."""
    values = model(torch.tensor([ids])).logits[0].float().log_softmax(-1)
    return [round(float(values[position - 1, ids[position]]), 6) for position in range(start, len(ids))]


def num_common(left: list[int], right: list[int]) -> int:
    """How many ids two prompts begin with alike."""
    return next((i for i, (a, b) in enumerate(zip(left, right, strict=False)) if a != b), min(len(left), len(right)))


def make(name: str, path: Path, out: Path) -> None:
    """Run one model over every case and write its file."""
    source: dict[str, Any] = {"pretrained_model_name_or_path": str(path.parent), "gguf_file": path.name}
    tokenizer = AutoTokenizer.from_pretrained(**source)
    model = AutoModelForCausalLM.from_pretrained(**source, dtype=torch.float32).eval()
    cases = []
    for text, choices in CASES:
        alone, *prompts = [tokenizer(text + choice)["input_ids"] for choice in ("", *choices)]
        start = min(num_common(alone, prompt) for prompt in prompts)
        found = [logprobs(model, prompt, start) for prompt in prompts]
        ids = [prompt[start:] for prompt in prompts]
        cases.append({"text": text, "choices": choices, "ids": ids, "logprobs": found})
        print(f"{text!r}: {[round(sum(values), 3) for values in found]}", flush=True)
    document = {"model": name, "transformers": transformers.__version__, "torch": torch.__version__, "cases": cases}
    out.mkdir(parents=True, exist_ok=True)
    (out / f"{name}.json").write_text(json.dumps(document, ensure_ascii=False, separators=(",", ":")) + "\n")


def main() -> None:
    """Parse the command line and write the file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", metavar="NAME=FILE.gguf")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent.parent / "tests" / "data" / "choices")
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    name, _, path = args.model.partition("=")
    make(name, Path(path), args.out)


if __name__ == "__main__":
    main()
