"""Clients that go away, over real sockets: whatever they waited for, their requests end at once."""

from __future__ import annotations

import http.client
import json
import socket
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest
from serverkit import FakeBackend, House, make_house, real_server, wait_until

from sapwood.errors import EngineFailed
from sapwood.messages.types import Abort

CHAT = {"messages": [{"role": "user", "content": "hi"}], "n": 2, "max_tokens": 200}
ROUTES: list[tuple[str, dict[str, Any]]] = [
    ("/generate", {"text": ["a", "b"], "sampling_params": {"max_new_tokens": 200}}),
    ("/v1/chat/completions", CHAT),
    ("/v1/completions", {"prompt": ["a", "b"], "max_tokens": 200}),
]


def send(url: str, path: str, body: dict[str, Any]) -> socket.socket:
    """A request by hand; the caller reads, or hangs up."""
    parts = urlsplit(url)
    data = json.dumps(body).encode()
    head = (
        f"POST {path} HTTP/1.1\r\nHost: {parts.netloc}\r\nContent-Type: application/json\r\nContent-Length: {len(data)}\r\n\r\n"
    )
    connection = socket.create_connection((parts.hostname, parts.port or 80), timeout=10)
    connection.sendall(head.encode() + data)
    return connection


def aborted(house: House) -> list[int]:
    return sorted(number for abort in house.backend.sent_of(Abort) for number in abort.numbers)


@pytest.mark.parametrize(("path", "body"), ROUTES)
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("is_paused", [False, True], ids=["while-running", "while-waiting"])
def test_hanging_up_aborts_every_sample(path: str, body: dict[str, Any], stream: bool, is_paused: bool) -> None:
    house = make_house(FakeBackend(step_s=0.02))
    house.backend.is_paused = is_paused
    with real_server(house) as url:
        connection = send(url, path, {**body, "stream": stream})
        assert wait_until(lambda: house.frontend.num_open == 2)
        if stream and not is_paused:
            assert connection.recv(10)
        connection.close()
        assert wait_until(lambda: house.frontend.num_open == 0, 1.0)
        assert aborted(house) == [1, 2]
        house.backend.is_paused = False
        assert httpx.post(f"{url}/generate", json={"text": "a", "sampling_params": {"max_new_tokens": 2}}).json()["text"] == "He"


def test_a_client_that_reads_to_the_end_is_not_aborted() -> None:
    house = make_house()
    with real_server(house) as url:
        for path, body in ROUTES:
            assert httpx.post(f"{url}{path}", json=body, timeout=20).status_code == 200
            assert httpx.post(f"{url}{path}", json={**body, "stream": True}, timeout=20).text.endswith("data: [DONE]\n\n")
    assert aborted(house) == []


def test_a_slow_reader_gets_merged_updates_and_everything() -> None:
    house = make_house(FakeBackend(step_s=0.001))
    with real_server(house) as url:
        parts = urlsplit(url)
        client = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=20)
        client.request("POST", "/v1/completions", json.dumps({"prompt": "a", "max_tokens": 200, "stream": True}))
        response = client.getresponse()
        assert wait_until(lambda: house.frontend.num_open == 0)
        events = [json.loads(line[6:]) for line in response.read().decode().split("\n\n") if line.startswith("data: {")]
        text = "".join(event["choices"][0]["text"] for event in events)
        assert text.encode() == (house.backend.script * 4)[:200]


@pytest.mark.parametrize(("path", "body"), ROUTES)
def test_a_death_before_the_first_byte_has_a_status(path: str, body: dict[str, Any]) -> None:
    house = make_house()
    house.backend.is_paused = True
    with real_server(house) as url:
        connection = send(url, path, {**body, "stream": True})
        assert wait_until(lambda: house.frontend.num_open == 2)
        in_loop(house, lambda: house.frontend.fail_all(EngineFailed("the worker died; start the server again")))
        head = connection.recv(12)
        assert head == b"HTTP/1.1 200" if path == "/generate" else head == b"HTTP/1.1 500"
        connection.close()


@pytest.mark.parametrize(("path", "body"), ROUTES[1:])
def test_a_death_in_the_middle_is_an_error_event(path: str, body: dict[str, Any]) -> None:
    house = make_house(FakeBackend(step_s=0.02))
    with real_server(house) as url, httpx.stream("POST", f"{url}{path}", json={**body, "stream": True}) as response:
        lines = response.iter_lines()
        assert next(lines).startswith("data: {")
        in_loop(house, lambda: house.frontend.fail_all(EngineFailed("the worker died; start the server again")))
        rest = [line for line in lines if line]
        assert json.loads(rest[-2][6:])["error"]["code"] == "engine_failed" and rest[-1] == "data: [DONE]"
        assert httpx.get(f"{url}/health").status_code == 503


def in_loop(house: House, action: Any) -> None:
    """Run `action` on the server's loop at its next step."""
    backend = house.backend
    step = backend.step

    def once() -> None:
        backend.step = step  # type: ignore[method-assign]
        action()

    backend.step = once  # type: ignore[method-assign]
    backend.is_paused = False
