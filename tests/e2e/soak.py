"""A mixed load that goes on and on, with clients that leave at random, and what it does to memory, descriptors and latency."""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import statistics
import time
from dataclasses import dataclass, field
from typing import Any

import httpx
import psutil
from serving import RunningServer

NUM_CLIENTS = 24
SAMPLES = 60
OPTIONS = ("--max-total-tokens", "2048", "--max-running-requests", "16", "--enable-hierarchical-cache", "--hicache-ratio", "2")
"""A tiny pool, with a tier below it."""
SHARED = "a beginning that many prompts have in common, long enough for a few pages "


@dataclass
class Usage:
    """What the processes of a server hold at a moment."""

    num_requests: int
    rss_bytes: int
    num_fds: int


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
        later = self.usage[len(self.usage) // 2 :]
        return statistics.linear_regression([u.num_requests for u in later], [u.rss_bytes for u in later]).slope * 1000

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
    family = [psutil.Process(server.process.pid), *psutil.Process(server.process.pid).children(recursive=True)]
    return Usage(num_requests, sum(p.memory_info().rss for p in family), sum(p.num_fds() for p in family))


def body_of(dice: random.Random) -> dict[str, Any]:
    """Some call."""
    params: dict[str, Any] = {"max_new_tokens": dice.randint(1, 40), "temperature": dice.choice((0, 1)), "ignore_eos": True}
    if dice.random() < 0.2:
        params["n"] = 2
    if dice.random() < 0.2:
        params["stop"] = ["ab", "qz"]
    if dice.random() < 0.2:
        params["frequency_penalty"] = 0.5
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
    """Keep the server busy for so long."""
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
