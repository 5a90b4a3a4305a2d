"""A crowd of clients, a third of which vanish: everybody else is served and nothing is left behind (the laws, over HTTP)."""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
from pathlib import Path

import httpx
from serving import RunningServer, serving, wait_until

CROWD = 200


def stats(server: RunningServer) -> dict[str, int]:
    return server.client.get("/server_info").json()["internal_states"][0]


def is_at_rest(server: RunningServer) -> bool:
    now = stats(server)
    return now["num_running"] == 0 == now["num_waiting"] and now["num_free_pages"] + now["num_cached_pages"] == now["num_pages"]


async def one_client(client: httpx.AsyncClient, index: int, dice: random.Random) -> tuple[str, int]:
    """Plays one client; returns what became of it and how many completion tokens it got."""
    prompt = "shared beginning of many prompts " * dice.randint(0, 4) + f"client {index} " * dice.randint(1, 30)
    wanted = dice.randint(1, 60)
    leaves = index % 3 == 0
    body = {"prompt": prompt, "max_tokens": wanted, "temperature": dice.choice([0, 1]), "ignore_eos": True, "model": "null"}
    if index % 2:
        return await stream(client, body, leaves, dice)
    if leaves:
        with contextlib.suppress(httpx.TimeoutException):
            await client.post("/v1/completions", json=body | {"max_tokens": 2000}, timeout=dice.uniform(0.01, 0.3))
        return "left", 0
    reply = await client.post("/v1/completions", json=body)
    assert reply.status_code == 200, reply.text
    return "served", reply.json()["usage"]["completion_tokens"] - wanted


async def stream(client: httpx.AsyncClient, body: dict, leaves: bool, dice: random.Random) -> tuple[str, int]:
    wanted = body["max_tokens"]
    body = body | {"stream": True, "stream_options": {"include_usage": True}}
    if leaves:
        body["max_tokens"] = 2000
    async with client.stream("POST", "/v1/completions", json=body) as reply:
        assert reply.status_code == 200
        lines, last = 0, ""
        async for line in reply.aiter_lines():
            if not line:
                continue
            lines += 1
            if leaves and lines > dice.randint(0, 10):
                return "left", 0
            if line == "data: [DONE]":
                break
            last = line
    return "served", json.loads(last.removeprefix("data: "))["usage"]["completion_tokens"] - wanted


async def crowd(url: str) -> list[tuple[str, int]]:
    limits = httpx.Limits(max_connections=CROWD)
    async with httpx.AsyncClient(base_url=url, timeout=60, limits=limits) as client:
        return await asyncio.gather(*(one_client(client, i, random.Random(i)) for i in range(CROWD)))


def test_a_crowd_with_deserters_leaves_nothing_behind(tmp_path: Path) -> None:
    with serving(tmp_path, "null", "--max-running-requests", "32", "--max-total-tokens", "4096", "--page-size", "16") as server:
        before = server.generate("what remains the same?", max_new_tokens=40)
        fates = asyncio.run(crowd(server.url))
        assert [fate for fate in fates if fate[0] == "served"] == [("served", 0)] * sum(i % 3 != 0 for i in range(CROWD))
        wait_until(lambda: is_at_rest(server), 5, "an idle pool")
        assert stats(server)["law_violations_total"] == 0
        after = server.generate("what remains the same?", max_new_tokens=40)
        assert after["text"] == before["text"]
        assert after["output_ids"] == before["output_ids"]


def test_a_client_that_leaves_frees_its_pages_at_once(tmp_path: Path) -> None:
    with serving(tmp_path, "null", "--null-step-ms", "5") as server:
        body = {"text": "on and on", "sampling_params": {"max_new_tokens": 2000, "ignore_eos": True}, "stream": True}
        with server.client.stream("POST", "/generate", json=body) as reply:
            lines = reply.iter_lines()  # kept: a generator that is dropped closes the connection
            next(lines)
            assert stats(server)["num_running"] == 1
        wait_until(lambda: is_at_rest(server), 1.5, "the request of a vanished client to be freed")
        assert stats(server)["num_running"] == 0
