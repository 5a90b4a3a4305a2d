"""A mixed load of streams and plain calls whose answers can be compared, and processes that are killed meanwhile."""

from __future__ import annotations

import asyncio
import json
import random
import time
from typing import Any

import httpx
import psutil
from serving import RunningServer

VICTIMS = ("worker", "tokenizer", "detokenizer")
OPTIONS = ("--tokenizer-worker-num", "1", "--detokenizer", "process", "--constrained-json-disable-any-whitespace")
"""Each kind of process is one that can be killed; constrained JSON has much that is forced."""
SHARED = "Once upon a time, in a village by the sea, there lived a fisherman who "
RETRY_S = 0.2
COUNTRY = {"type": "object", "properties": {"name": {"enum": ["Norway", "Nauru"]}, "coast_km": {"type": "integer"}}}
SCHEMA = {
    "type": "object",
    "properties": {"country": COUNTRY, "codes": {"type": "array", "items": {"type": "integer"}, "maxItems": 20}},
    "required": ["country", "codes"],
}
REGEX = "(the [a-z]{3,20} of [a-z]{3,20}; ){2,4}end"
CONSTRAINTS = {3: {"json_schema": json.dumps(SCHEMA)}, 5: {"regex": REGEX}}
"""By the remainder of a call's index."""


def calls(count: int, num_tokens: int) -> list[dict[str, Any]]:
    """Greedy and seeded, constrained, n > 1, penalties, stop strings, log-probabilities, shared prefixes, streamed or not; always
    the same."""
    dice = random.Random(5)
    made = []
    for index in range(count):
        params: dict[str, Any] = {"max_new_tokens": num_tokens, "temperature": 0.0, "ignore_eos": index % 4 != 3}
        if index % 2:
            params |= {"temperature": 1.0, "sampling_seed": index}
        if index % 5 == 1:
            params |= {"n": 2}
        if index % 3 == 1:
            params |= {"frequency_penalty": 0.4, "presence_penalty": 0.2}
        if index % 4 == 2:
            params |= {"stop": ["qu", "zz "], "stop_regex": ["[xyz]{3}"]}
        if index % 6 == 4:
            params |= {"min_new_tokens": num_tokens // 2}
        if index % 7 in CONSTRAINTS:
            params |= CONSTRAINTS[index % 7]
        text = (SHARED if index % 3 else "") + "".join(dice.choices("abcdefgh ", k=dice.randint(1, 60)))
        call = {"text": text, "sampling_params": params, "stream": index % 3 != 2}
        if index % 4 == 0:
            call |= {"return_logprob": True, "top_logprobs_num": 2, "logprob_start_len": 0 if index % 8 == 0 else -1}
        made.append(call)
    return made


async def ask(client: httpx.AsyncClient, call: dict[str, Any]) -> Any:
    """One call to its end; one that is refused for the time is sent again, as its `Retry-After` says."""
    while True:
        async with client.stream("POST", "/generate", json=call) as reply:
            data = (await reply.aread()).decode()
        if reply.status_code == 503:
            assert "retry-after" in reply.headers
            await asyncio.sleep(RETRY_S)
            continue
        if reply.status_code != 200:
            return {"failed": data}
        if not call["stream"]:
            items = json.loads(data)
            return [comparable(item) for item in (items if isinstance(items, list) else [items])]
        return joined(data)


def joined(data: str) -> Any:
    """A stream's samples: each event repeats the whole text so far, so the last one has everything; nothing may shrink."""
    lines = [line.removeprefix("data: ") for line in data.split("\n\n") if line]
    if lines[-1] != "[DONE]" or '"error"' in lines[-2][:12]:
        return {"failed": data[-500:]}
    last: dict[int, Any] = {}
    for event in map(json.loads, lines[:-1]):
        before = last.get(event.get("index", 0), {"text": "", "output_ids": []})
        assert event["text"].startswith(before["text"]), "text was taken back"
        assert event["output_ids"][: len(before["output_ids"])] == before["output_ids"], "ids were taken back"
        last[event.get("index", 0)] = event
    return [comparable(last[index]) for index in sorted(last)]


def comparable(item: dict[str, Any]) -> dict[str, Any]:
    """An answer without what may differ: its id, its times, and how much was cached."""
    wanted = ("finish_reason", "prompt_tokens", "completion_tokens", "output_token_logprobs", "output_top_logprobs")
    wanted += ("input_token_logprobs", "input_top_logprobs")
    meta = item["meta_info"]
    return {"text": item["text"], "output_ids": item["output_ids"], **{key: meta[key] for key in wanted if key in meta}}


async def load(server: RunningServer, made: list[dict[str, Any]]) -> list[Any]:
    """All calls at once; the answers by call and, within it, by sample."""
    limits = httpx.Limits(max_connections=len(made) + 4)
    async with httpx.AsyncClient(base_url=server.url, timeout=240, limits=limits) as client:
        return await asyncio.gather(*(ask(client, call) for call in made))


def is_same(one: Any, other: Any, tolerance: float = 0.0) -> bool:
    """Whether two answers are equal, but for so much in each log-probability."""
    if isinstance(one, float) and isinstance(other, float):
        return abs(one - other) <= tolerance
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(is_same(one[key], other[key], tolerance) for key in one)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(is_same(*pair, tolerance) for pair in zip(one, other, strict=True))
    return bool(one == other)


async def stormy_loads(
    server: RunningServer, made: list[dict[str, Any]], victims: list[str], dice: random.Random
) -> tuple[list[list[Any]], list[float]]:
    """The same load, again whenever it has ended, while processes are killed at random moments: every load's answers, and how
    many seconds each recovery took."""
    loads, recovery_s = [], []
    running = asyncio.ensure_future(load(server, made))
    for victim in victims:
        await asyncio.sleep(dice.uniform(0.05, 0.5))
        if running.done():
            loads.append(running.result())
            running = asyncio.ensure_future(load(server, made))
            await asyncio.sleep(dice.uniform(0.1, 0.5))
        recovery_s.append(await kill(server, victim, dice))
    return [*loads, await running], recovery_s


def kill_order(count: int, dice: random.Random) -> list[str]:
    """Each kind of process in turn, in random order."""
    order: list[str] = []
    while len(order) < count:
        order += dice.sample(VICTIMS, len(VICTIMS))
    return order[:count]


async def kill(server: RunningServer, victim: str, dice: random.Random) -> float:
    """Kill a process of that kind (a worker may have several ranks); the seconds until the server is ready again."""
    process = dice.choice([child for name, child in server.children().items() if name.startswith(victim)])
    process.kill()
    began_s = time.monotonic()
    async with httpx.AsyncClient(base_url=server.url, timeout=30) as client:
        was_away = False
        while True:
            ready = (await client.get("/ready")).status_code == 200
            assert (await client.get("/health")).status_code == 200
            was_away = was_away or not ready
            if ready and (was_away or not process.is_running()) and is_replaced(server, process):
                return time.monotonic() - began_s
            assert time.monotonic() - began_s < 90, f"the {victim} did not come back"
            await asyncio.sleep(0.02)


def is_replaced(server: RunningServer, dead: psutil.Process) -> bool:
    """Whether all kinds of processes run, without the dead one."""
    try:
        running = server.children()
    except psutil.NoSuchProcess:
        return False
    kinds = {name.rstrip("0123456789") for name in running}
    return kinds == set(VICTIMS) and dead.pid not in {child.pid for child in running.values()}
