#!/usr/bin/env python3
"""Write tests/data/reference/<model>.json: what transformers generates greedily, in float32, from the catalog's GGUF files.

Usage: make_reference_outputs.py NAME=FILE.gguf [NAME=FILE.gguf ...] [--out DIR] [--threads N]

Each of the 20 prompts continues for 64 tokens, past any end-of-sequence id, one prompt at a time with transformers' own
KV cache. Besides the ids, the distance between the two largest logits is kept for each generated position: an engine whose
arithmetic differs in the last bits may legitimately choose differently where that distance is tiny, and nowhere else.
The mean log-probability of a fixed text (prose.txt beside the files) is kept too: e to its negative is the perplexity.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import AutoModelForCausalLM, AutoTokenizer

DATA = Path(__file__).parent.parent / "tests" / "data" / "reference"
NUM_NEW_TOKENS = 64

LONG_LIST = "Stock of the shop, shelf by shelf.\n" + "\n".join(
    f"Shelf {i}: {3 * i + 2} {fruit}, {7 * i % 11} jars of {spice} and a note that says '{fruit} before {spice}'."
    for i, (fruit, spice) in enumerate(
        [
            (fruit, spice)
            for fruit in ("apples", "pears", "plums", "quinces", "cherries", "figs")
            for spice in ("salt", "pepper", "cumin", "saffron")
        ]
    )
)

PLAIN_PROMPTS = [
    "The capital of France is",
    "Once upon a time, in a village at the edge of a great forest,",
    "Photosynthesis is the process by which",
    "def fibonacci(n):\n    ",
    "#include <stdio.h>\n\nint main(void) {\n",
    "SELECT name, COUNT(*) FROM orders",
    "Shopping list:\n1. milk\n2. bread\n3.",
    '{"name": "Ada", "born": 1815, "languages": ["',
    "대한민국의 수도는",
    "La recette de la tarte aux pommes commence par",
    "Die drei größten Städte Deutschlands sind",
    "日本で一番高い山は",
    "2 + 2 = 4\n3 + 3 = 6\n4 + 4 =",
    "Dear Sir or Madam,\n\nI am writing to complain about",
    "| city | country |\n|---|---|\n| Paris | France |\n| Rome |",
    "🙂 🙃 🙂 🙃 🙂",
    LONG_LIST,
]

CHAT_PROMPTS = [
    "Write a haiku about the sea.",
    "How do I reverse a list in Python?",
    "안녕하세요! 자기소개를 해 주세요.",
]


def prompt_ids(tokenizer: Any) -> list[tuple[str, list[int]]]:
    """Every prompt as (text, ids); chat prompts use the model's template, or are written as plain dialogue without one."""
    prompts = [(text, tokenizer(text)["input_ids"]) for text in PLAIN_PROMPTS]
    for message in CHAT_PROMPTS:
        if tokenizer.chat_template:
            messages = [{"role": "user", "content": message}]
            text = tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
            prompts.append((text, tokenizer(text, add_special_tokens=False)["input_ids"]))
        else:
            text = f"User: {message}\nAssistant:"
            prompts.append((text, tokenizer(text)["input_ids"]))
    return prompts


@torch.inference_mode()
def continue_greedily(model: Any, ids: list[int]) -> tuple[list[int], list[float]]:
    """NUM_NEW_TOKENS ids after `ids`, and at each of them the distance between the two largest logits."""
    output, gaps, cache, step = [], [], None, torch.tensor([ids])
    for _ in range(NUM_NEW_TOKENS):
        result = model(step, past_key_values=cache, use_cache=True, logits_to_keep=1)
        cache = result.past_key_values
        best = result.logits[0, -1].float().topk(2)
        output.append(int(best.indices[0]))
        gaps.append(round(float(best.values[0] - best.values[1]), 6))
        step = best.indices[:1].view(1, 1)
    return output, gaps


@torch.inference_mode()
def mean_logprob(model: Any, ids: list[int]) -> float:
    """Of the ids from the second on, each given those before it."""
    tokens = torch.tensor([ids])
    logprobs = model(tokens).logits[0, :-1].float().log_softmax(-1)
    return float(logprobs.gather(1, tokens[0, 1:, None]).double().mean())


def make(name: str, path: Path, out: Path) -> None:
    """Run one model over every prompt and write its file."""
    source: dict[str, Any] = {"pretrained_model_name_or_path": str(path.parent), "gguf_file": path.name}
    tokenizer = AutoTokenizer.from_pretrained(**source)
    model = AutoModelForCausalLM.from_pretrained(**source, dtype=torch.float32).eval()
    cases = []
    for text, ids in prompt_ids(tokenizer):
        output, gaps = continue_greedily(model, ids)
        cases.append({"prompt": text, "prompt_ids": ids, "output_ids": output, "gaps": gaps})
        print(f"{name}: {len(cases)}/20 {text[-30:]!r} -> {tokenizer.decode(output)[:60]!r}", flush=True)
    prose = tokenizer((DATA / "prose.txt").read_text())["input_ids"]
    text = {"ids": prose, "mean_logprob": mean_logprob(model, prose)}
    versions = {"transformers": transformers.__version__, "torch": torch.__version__}
    document = {"model": name, **versions, "cases": cases, "prose": text}
    out.mkdir(parents=True, exist_ok=True)
    (out / f"{name}.json").write_text(json.dumps(document, ensure_ascii=False, separators=(",", ":")) + "\n")


def main() -> None:
    """Parse the command line and write one file per model."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="+", metavar="NAME=FILE.gguf")
    parser.add_argument("--out", type=Path, default=DATA)
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    for entry in args.models:
        name, _, path = entry.partition("=")
        make(name, Path(path), args.out)


if __name__ == "__main__":
    main()
