"""Clients that go away in any phase of their request: everything is free again within a second."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

import pytest
from serving import RunningServer, serving, wait_until

LONG = {"max_new_tokens": 900, "ignore_eos": True}
PATIENCE_S = 1.5
"""A second, and what asking takes on a busy machine."""


@pytest.fixture(scope="module")
def slow_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """Steps of 20 ms, two slots, prompts in chunks of 16 tokens."""
    options = ("--null-step-ms", "20", "--max-running-requests", "2", "--chunked-prefill-size", "16", "--page-size", "16")
    with serving(tmp_path_factory.mktemp("departures"), "null", *options) as server:
        yield server


def call(server: RunningServer, body: dict[str, Any]) -> socket.socket:
    """Send a `/generate` by hand; the caller hangs up."""
    parts, data = urlsplit(server.url), json.dumps(body).encode()
    connection = socket.create_connection((parts.hostname, parts.port or 80), timeout=10)
    connection.sendall(b"POST /generate HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(data) + data)
    return connection


def state(server: RunningServer) -> dict[str, Any]:
    info = server.client.get("/server_info").json()
    return {**info["internal_states"][0], "num_open": info["num_open_requests"]}


def is_free(server: RunningServer) -> bool:
    now = state(server)
    pages = now["num_free_pages"] + now["num_cached_pages"]
    return now["num_open"] == now["num_running"] == now["num_waiting"] == 0 and pages == now["num_pages"]


PHASES: dict[str, tuple[dict[str, Any], dict[str, int]]] = {
    "prefilling": ({"text": "word " * 180}, {"num_running": 1}),
    "streaming": ({"text": "a", "stream": True}, {"num_running": 1}),
    "not streaming": ({"text": "a"}, {"num_running": 1}),
    "two samples": ({"text": "a", "sampling_params": {**LONG, "n": 2}}, {"num_running": 2}),
    "queued, three samples": ({"text": "a", "sampling_params": {**LONG, "n": 3}, "stream": True}, {"num_waiting": 1}),
}


@pytest.mark.parametrize("phase", PHASES)
def test_a_client_that_leaves(slow_server: RunningServer, phase: str) -> None:
    body, expected = PHASES[phase]
    connection = call(slow_server, {"sampling_params": LONG, **body})
    wait_until(lambda: expected.items() <= state(slow_server).items(), 10, phase)
    if phase == "streaming":
        assert connection.recv(1000)
    connection.close()
    wait_until(lambda: is_free(slow_server), PATIENCE_S, f"everything to be free after a client left while {phase}")
    assert state(slow_server)["law_violations_total"] == 0


def test_one_who_waits_in_the_queue_leaves_and_the_others_do_not_notice(slow_server: RunningServer) -> None:
    body = {"text": "stay", "sampling_params": {"max_new_tokens": 100, "ignore_eos": True, "n": 2}, "stream": True}
    staying = call(slow_server, body)
    wait_until(lambda: state(slow_server)["num_running"] == 2, 10, "both slots taken")
    leaving = call(slow_server, {"text": "leave", "sampling_params": LONG})
    wait_until(lambda: state(slow_server)["num_waiting"] == 1, 10, "one in the queue")
    leaving.close()
    wait_until(lambda: state(slow_server)["num_waiting"] == 0, PATIENCE_S, "the queue to be empty")
    with staying, staying.makefile("rb") as answer:
        lines = [line for line in iter(answer.readline, b"data: [DONE]\n") if line.startswith(b"data: {")]
    ends = [event["meta_info"]["completion_tokens"] for event in map(json.loads, (line[6:] for line in lines))]
    assert ends.count(100) == 2
