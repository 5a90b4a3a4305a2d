"""Weights replaced in a running server, processes and all: the stream goes on, and afterwards the answers are the new model's."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, cast

import pytest
import tokenizers
import torch
import transformers
from serving import serving

from sapwood import LLM, Engine, SamplingParams

VOCAB = 64
PROMPT = [5, 9, 23, 44, 7]
GREEDY = {"temperature": 0, "max_new_tokens": 24, "ignore_eos": True}


def save_model(folder: Path, seed: int) -> None:
    """A tiny random llama with a tokenizer of single letters."""
    sizes = {"vocab_size": VOCAB, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4}
    torch.manual_seed(seed)
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**sizes, max_position_embeddings=256, eos_token_id=2))
    for parameter in model.parameters():
        parameter.data.normal_(0.0, 0.25)
    model.save_pretrained(folder)
    words = {chr(48 + index): index for index in range(VOCAB)}
    library = tokenizers.Tokenizer(tokenizers.models.BPE(vocab=words, merges=[]))
    library.save(str(folder / "tokenizer.json"))


def alone(folder: Path) -> list[int]:
    with LLM(str(folder), device="cpu") as llm:
        return llm.generate([PROMPT], SamplingParams(**GREEDY))[0].token_ids


@pytest.mark.timeout(300)
def test_a_server_changes_its_weights(tmp_path: Path) -> None:
    folders = [tmp_path / name for name in ("first", "second")]
    for seed, folder in enumerate(folders):
        save_model(folder, seed)
    first, second = map(alone, folders)
    assert first != second
    options = ("--weight-update-folder", str(tmp_path), "--device", "cpu", "--admin-api-key", "boss")
    body = {"input_ids": PROMPT, "sampling_params": GREEDY}
    with serving(tmp_path, str(folders[0]), *options) as server, ThreadPoolExecutor(4) as pool:
        ask = lambda: server.client.post("/generate", json=body).json()  # noqa: E731
        steer = lambda path, **fields: server.client.post(path, json=fields, headers={"x-api-key": "boss"})  # noqa: E731
        assert ask()["output_ids"] == first
        assert server.client.post("/update_weights_from_disk", json={"model_path": "second"}).status_code == 401
        long = {**body, "sampling_params": {**GREEDY, "max_new_tokens": 200}}
        running = [pool.submit(server.client.post, "/generate", json=long) for _ in range(3)]
        reply = steer("/update_weights_from_disk", model_path="second", weight_version="2")
        assert reply.status_code == 200, reply.text
        for future in running:
            assert len(future.result().json()["output_ids"]) == 200
        after = ask()
        assert after["output_ids"] == second and after["meta_info"]["weight_version"] == "2"
        assert steer("/update_weights_from_disk", model_path="../first").status_code == 403
        assert steer("/release_memory_occupation").status_code == 200
        waiting = pool.submit(ask)
        assert steer("/resume_memory_occupation").status_code == 200
        assert waiting.result()["output_ids"] == second
        assert steer("/start_profile", num_steps=4).status_code == 200
        ask()
        trace = json.loads(Path(steer("/stop_profile").json()["path"]).read_text())
        assert len(trace["traceEvents"]) >= 4
        server.child("worker").kill()
        assert ask()["output_ids"] == second, "a worker that is started again has the present weights"
        state = server.client.get("/server_info").json()["internal_states"][0]
        assert state["law_violations_total"] == 0


def test_an_engine_changes_its_weights(tmp_path: Path) -> None:
    folders = [tmp_path / name for name in ("first", "second")]
    for seed, folder in enumerate(folders):
        save_model(folder, seed)
    first, second = map(alone, folders)
    with Engine(str(folders[0]), device="cpu", log_level="error") as engine:
        ask = lambda: cast(Any, engine.generate(input_ids=PROMPT, sampling_params=GREEDY))  # noqa: E731
        assert ask()["output_ids"] == first
        long = engine.generate(input_ids=PROMPT, sampling_params={**GREEDY, "max_new_tokens": 200}, stream=True)
        next(cast(Any, long))
        assert engine.update_weights_from_disk(str(folders[1]), weight_version="2")[0]
        assert len(list(cast(Any, long))[-1]["output_ids"]) == 200, "what runs goes on"
        after = ask()
        assert after["output_ids"] == second and after["meta_info"]["weight_version"] == "2"
        engine.release_memory_occupation()
        engine.resume_memory_occupation()
        assert ask()["output_ids"] == second
        (folders[0] / "model.safetensors").write_bytes(b"broken")
        is_done, message, _ = engine.update_weights_from_disk(str(folders[0]))
        assert not is_done and message
        assert ask()["output_ids"] == second, "those before stay"
