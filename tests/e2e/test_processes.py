"""The same answers wherever tokenizers and the detokenizer run, also when clients leave before their prompt is tokenized."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path
from typing import Any

import httpx
from serving import RunningServer, serving, wait_until
from test_crowd import is_at_rest

PROMPTS = ["plain text", "naïve café — 한국어 テスト 🙂", "x" * 3000, "a stop word comes", "<|im_start|>user"]

EXTRAS: list[dict[str, Any]] = [
    {},
    {"stop": ["e", "zz"]},
    {"stop_regex": ["[aeiou]{2}"]},
    {"temperature": 1.0, "sampling_seed": 7, "n": 2},
]


def answers(server: RunningServer) -> list[Any]:
    """Everything that must not depend on the processes."""
    results: list[Any] = []
    for prompt in PROMPTS:
        for extra in (
            {},
            {"stop": ["e", "zz"]},
            {"stop_regex": ["[aeiou]{2}"]},
            {"temperature": 1.0, "sampling_seed": 7, "n": 2},
        ):
            params = {"temperature": 0, "max_new_tokens": 48, **extra}
            reply = server.client.post("/generate", json={"text": prompt, "sampling_params": params}).json()
            for item in reply if isinstance(reply, list) else [reply]:
                results.append((item["text"], item["output_ids"], item["meta_info"]["finish_reason"]))
    chat = {"model": "null", "messages": [{"role": "user", "content": "hi <|im_end|>"}], "max_tokens": 20, "temperature": 0}
    results.append(server.client.post("/v1/chat/completions", json=chat).json()["choices"])
    return results


async def leave_early(url: str) -> None:
    """Clients that hang up at once, most of them while their long prompt is still being tokenized."""

    async def one(client: httpx.AsyncClient, index: int) -> None:
        body = {"text": f"{index} " + "word " * 2000, "sampling_params": {"max_new_tokens": 500, "ignore_eos": True}}
        with contextlib.suppress(httpx.TimeoutException):
            await client.post("/generate", json=body, timeout=0.002 + 0.001 * (index % 10))

    async with httpx.AsyncClient(base_url=url, limits=httpx.Limits(max_connections=60)) as client:
        await asyncio.gather(*(one(client, index) for index in range(60)))


def test_processes_change_nothing(tmp_path: Path) -> None:
    with serving(tmp_path, "null", "--tokenizer-worker-num", "0", "--detokenizer", "inline") as server:
        assert len(server.children()) == 1
        expected = answers(server)
    with serving(tmp_path, "null", "--tokenizer-worker-num", "2", "--detokenizer", "process") as server:
        assert len(server.children()) == 4
        assert answers(server) == expected
        asyncio.run(leave_early(server.url))
        wait_until(lambda: is_at_rest(server), 5, "an idle pool")
        assert answers(server) == expected
