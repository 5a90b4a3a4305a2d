"""`LLM` over two ranks: the same results as with one, and no rank left behind however it ends."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import psutil
import pytest
from tokenizers import Tokenizer, models

from sapwood import LLM, EngineFailed, LogprobOptions, SamplingParams

GREEDY = SamplingParams(temperature=0.0, max_new_tokens=8, ignore_eos=True)
PROMPTS = [[5, 6, 7, 8], [9, 10], [5, 6, 7, 9]]
CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "rms_norm_eps": 1e-5,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "torch_dtype": "float32",
}


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a tiny llama's configuration and a tokenizer; its weights are drawn."""
    folder = tmp_path_factory.mktemp("tiny")
    (folder / "config.json").write_text(json.dumps(CONFIG))
    Tokenizer(models.WordLevel({f"w{i}": i for i in range(64)}, unk_token="w0")).save(str(folder / "tokenizer.json"))
    return folder


def open_tiny(folder: Path, tp_size: int) -> LLM:
    return LLM(str(folder), load_format="dummy", random_seed=3, tp_size=tp_size, cpu_threads=1, max_total_tokens=1024)


def children() -> list[int]:
    return [child.pid for child in psutil.Process().children() if "sapwood.worker.main" in " ".join(child.cmdline())]


def test_two_ranks_give_what_one_gives(tiny: Path) -> None:
    answers = []
    for tp_size in (1, 2):
        with open_tiny(tiny, tp_size) as llm:
            assert len(children()) == tp_size - 1
            results = llm.generate(PROMPTS, GREEDY, logprobs=LogprobOptions(output=True))
            answers.append(results)
            llm.flush_cache()
        assert children() == []
    one, two = answers
    assert [result.token_ids for result in one] == [result.token_ids for result in two]
    for left, right in zip(one, two, strict=True):
        assert left.logprobs and right.logprobs
        assert [e.logprob for e in left.logprobs] == pytest.approx([e.logprob for e in right.logprobs], abs=1e-4)


def test_a_rank_that_dies_fails_the_call_at_once(tiny: Path) -> None:
    with open_tiny(tiny, 2) as llm:
        (follower,) = children()
        os.kill(follower, signal.SIGKILL)
        with pytest.raises(EngineFailed):  # by the broken connection: the timeout of collectives exceeds that of this test
            llm.generate(PROMPTS, GREEDY)
    assert children() == []


def test_ranks_follow_a_caller_that_is_killed(tiny: Path) -> None:
    with tempfile.TemporaryDirectory(prefix="sw-") as sockets:  # what a killed caller leaves behind; short, for socket paths
        kill_a_caller(tiny, sockets)


def kill_a_caller(tiny: Path, sockets: str) -> None:
    script = (
        "import os, sys; from sapwood import LLM;"
        f"llm = LLM({str(tiny)!r}, load_format='dummy', tp_size=2, cpu_threads=1, max_total_tokens=1024);"
        "print('ready', flush=True); sys.stdin.read()"
    )
    environment = {**os.environ, "TMPDIR": sockets}
    caller = subprocess.Popen([sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment)
    assert caller.stdout is not None and caller.stdin is not None
    assert caller.stdout.readline() == b"ready\n"
    followers = psutil.Process(caller.pid).children()
    assert len(followers) == 1
    caller.kill()
    caller.wait()
    caller.stdin.close()
    caller.stdout.close()
    gone, alive = psutil.wait_procs(followers, timeout=20)
    assert alive == []
