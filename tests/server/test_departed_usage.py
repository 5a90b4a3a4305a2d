"""Clients that hang up in the middle, on every route: what they used is counted as it was, and nothing of it stays behind."""

from __future__ import annotations

import asyncio
import json
import re
from pathlib import Path
from typing import Any

import httpx
import pytest
from serverkit import House, make_house, real_server, wait_until
from test_disconnects import send
from test_null_house import CONTEXT_LEN, NullBackend, at_rest
from test_usage import ROUTES, Route

from sapwood.engine.null_model import VOCAB_SIZE
from sapwood.server.limits import ServingLimits

TURNS = 12
"""Of the worker's loop, before a client hangs up."""


class HaltingBackend(NullBackend):
    """A worker that takes `turns` turns and waits for more."""

    def __init__(self) -> None:
        super().__init__()
        self.turns = 0

    async def pump(self) -> None:
        while True:
            await asyncio.sleep(0.001)
            while self.turns > 0 and (self.inbox or not self.scheduler.may_rest):
                self.turns -= 1
                self.turn()
                await asyncio.sleep(0)


def halting_house(log: Path) -> House:
    house = make_house(HaltingBackend(), request_log=str(log))  # type: ignore[arg-type]
    house.frontend.start_serving(ServingLimits(CONTEXT_LEN, 4096, VOCAB_SIZE, 100))
    return house


def metrics_of(url: str) -> dict[str, float]:
    text = httpx.get(f"{url}/metrics").text
    return {name: float(value) for name, value in re.findall(r"^sapwood:(\w+)\{[^}]*\} (\S+)$", text, re.MULTILINE)}


CASES = [(route, n) for route in ROUTES for n in ((1, 2) if route.takes_n else (1,))]


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize(("route", "n"), CASES, ids=lambda value: getattr(value, "path", str(value)))
def test_what_a_client_used_before_it_left_is_counted(route: Route, n: int, stream: bool, tmp_path: Path) -> None:
    house = halting_house(tmp_path / "log")
    backend: Any = house.backend
    with real_server(house) as url:
        samples: dict[str, Any] = {"n": n} if n > 1 else {}
        connection = send(url, route.path, {**route.body, **route.fields(200, []), **samples, "stream": stream})
        assert wait_until(lambda: house.frontend.num_open == n)
        backend.turns = TURNS
        assert wait_until(lambda: backend.turns == 0) and house.frontend.num_open == n, "still at it"
        if stream:
            assert connection.recv(100).startswith(b"HTTP/1.1 200")
        connection.close()
        assert wait_until(lambda: house.frontend.num_open == 0), "the server sees it while the worker stands still"
        backend.turns = 1000
        assert wait_until(lambda: at_rest(house))
        metrics = metrics_of(url)
        state = httpx.get(f"{url}/server_info").json()["internal_states"][0]
    house.frontend.ledger.close()
    lines = [json.loads(line) for line in (tmp_path / "log").read_text().splitlines()]
    assert [(line["finish_reason"], line["status"], line["message"]) for line in lines] == [
        ("abort", 499, "aborted by the client")
    ] * n
    completed = sum(line["completion_tokens"] for line in lines)
    [prompt] = {line["prompt_tokens"] for line in lines}
    assert all(line["completion_tokens"] > 3 and line["first_token_s"] is not None for line in lines)
    late = metrics["generation_tokens_total"] - completed  # chosen by the worker before it heard of the end
    assert 0 <= late <= 3 * n
    assert metrics["prompt_tokens_total"] == n * prompt and metrics["num_aborted_requests_total"] == n
    assert metrics["num_requests_running"] == metrics["num_requests_waiting"] == 0
    assert state["num_free_pages"] + state["num_cached_pages"] == state["num_pages"] and state["law_violations_total"] == 0
    assert backend.detokenizer.num_watched == 0
