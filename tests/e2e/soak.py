"""A mixed load that goes on and on, with clients that leave at random, and what it does to memory, descriptors and latency."""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import statistics
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import psutil
from serving import RunningServer

NUM_CLIENTS = 24
SAMPLES = 60
OPTIONS = ("--max-total-tokens", "2048", "--max-running-requests", "16", "--enable-hierarchical-cache", "--hicache-ratio", "2")
"""A tiny pool, with a tier below it; `options` adds a storage below that."""
CONSTRAINTS: list[dict[str, Any]] = [
    {"regex": "[a-f]{3,30}(-[0-9]{3}){1,4}"},
    {"json_schema": json.dumps({"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]})},
    {"ebnf": 'root ::= ("yes" | "no") (" and " root)?'},
]
SHARED = "a beginning that many prompts have in common, long enough for a few pages "


def options(folder: Path) -> tuple[str, ...]:
    """Every tier, with a storage that is soon full."""
    storage = (
        "--hicache-storage-backend",
        "file",
        "--hicache-storage-path",
        str(folder / "kv"),
        "--hicache-storage-size",
        "1MiB",
    )
    return (*OPTIONS, *storage, "--hicache-storage-size", "1MiB")


@dataclass
class Usage:
    """What the processes of a server hold at a moment: all together, and memory by process."""

    num_requests: int
    rss_bytes: int
    num_fds: int
    rss_by_process: dict[str, int]


@dataclass
class Soak:
    """What was seen. `latencies_s` are (moment since the start, seconds per token) of calls that were read to their end."""

    num_requests: int = 0
    num_left: int = 0
    failures: list[str] = field(default_factory=list)
    usage: list[Usage] = field(default_factory=list)
    latencies_s: list[tuple[float, float]] = field(default_factory=list)

    @property
    def rss_slope_bytes(self) -> float:
        """Growth for each thousand requests over the second half (the first fills what is bounded), by least squares."""
        return self._slope([usage.rss_bytes for usage in self._later])

    @property
    def slopes_by_process(self) -> dict[str, float]:
        """The same for each process that was there all the time."""
        names = set.intersection(*(set(usage.rss_by_process) for usage in self._later))
        return {name: self._slope([usage.rss_by_process[name] for usage in self._later]) for name in sorted(names)}

    @property
    def _later(self) -> list[Usage]:
        return self.usage[len(self.usage) // 2 :]

    def _slope(self, values: list[int]) -> float:
        return statistics.linear_regression([usage.num_requests for usage in self._later], values).slope * 1000

    @property
    def p99_ratio(self) -> float:
        """The last quarter's 99th percentile of latency, as a multiple of the first's."""
        end_s = self.latencies_s[-1][0]
        first = [latency for moment, latency in self.latencies_s if moment < end_s / 4]
        last = [latency for moment, latency in self.latencies_s if moment > end_s * 3 / 4]
        return statistics.quantiles(last, n=100)[-1] / statistics.quantiles(first, n=100)[-1]

    @property
    def fd_growth(self) -> int:
        """Descriptors at the end beyond those after the first tenth, the clients' connections being the same."""
        return self.usage[-1].num_fds - self.usage[len(self.usage) // 10].num_fds


def measure(server: RunningServer, num_requests: int) -> Usage:
    """All processes of the server together."""
    family = {"server": psutil.Process(server.process.pid), **server.children()}
    memory = {name: process.memory_info().rss for name, process in family.items()}
    return Usage(num_requests, sum(memory.values()), sum(process.num_fds() for process in family.values()), memory)


def body_of(dice: random.Random) -> dict[str, Any]:
    """Some call."""
    params: dict[str, Any] = {"max_new_tokens": dice.randint(1, 40), "temperature": dice.choice((0, 1)), "ignore_eos": True}
    if dice.random() < 0.2:
        params["n"] = 2
    if dice.random() < 0.2:
        params["stop"] = ["ab", "qz"]
    if dice.random() < 0.2:
        params["frequency_penalty"] = 0.5
    if dice.random() < 0.2:
        params |= dice.choice(CONSTRAINTS) | {"ignore_eos": False}
    text = SHARED * dice.randint(0, 2) + "".join(dice.choices("abcdefgh ", k=dice.randint(1, 120)))
    return {"text": text, "sampling_params": params, "stream": dice.random() < 0.6, "return_logprob": dice.random() < 0.2}


async def one_call(client: httpx.AsyncClient, dice: random.Random) -> float:
    """Run a call; returns the seconds that each token took. Raises TimeoutError when the client leaves."""
    body = body_of(dice)
    began_s = time.monotonic()
    async with asyncio.timeout(dice.uniform(0.001, 0.05) if dice.random() < 0.2 else 60):
        reply = await client.post("/generate", json=body)
    if reply.status_code != 200 or (body["stream"] and not reply.text.endswith("data: [DONE]\n\n")) or '{"error"' in reply.text:
        raise RuntimeError(f"{reply.status_code}: {reply.text[-300:]} for {json.dumps(body)[:300]}")
    return (time.monotonic() - began_s) / body["sampling_params"]["max_new_tokens"]


async def soak(server: RunningServer, seconds: float, seed: int = 1) -> Soak:
    """Keep the server busy for so long, after what is loaded at the first constraint has been loaded."""
    for constraint in CONSTRAINTS:
        server.generate("first", max_new_tokens=4, **constraint)
    seen, began_s = Soak(), time.monotonic()

    async def client(index: int) -> None:
        dice = random.Random(seed * 1000 + index)
        async with httpx.AsyncClient(base_url=server.url, timeout=60) as connection:
            while time.monotonic() - began_s < seconds:
                seen.num_requests += 1
                try:
                    latency_s = await one_call(connection, dice)
                except TimeoutError:
                    seen.num_left += 1
                except (RuntimeError, httpx.HTTPError) as error:
                    seen.failures.append(repr(error))
                else:
                    seen.latencies_s.append((time.monotonic() - began_s, latency_s))

    async def watch() -> None:
        while True:
            await asyncio.sleep(seconds / SAMPLES)
            seen.usage.append(measure(server, seen.num_requests))

    watching = asyncio.ensure_future(watch())
    await asyncio.gather(*(client(index) for index in range(NUM_CLIENTS)))
    watching.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await watching
    return seen


def is_lawful(server: RunningServer) -> bool:
    """Whether a server at rest has everything back and never broke a law."""
    info = server.client.get("/server_info").json()
    now = info["internal_states"][0]
    at_rest = info["num_open_requests"] == now["num_running"] == now["num_waiting"] == now["law_violations_total"] == 0
    return bool(at_rest and now["num_free_pages"] + now["num_cached_pages"] == now["num_pages"])
