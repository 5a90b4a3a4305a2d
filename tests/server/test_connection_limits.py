"""What a connection may do before and beside its requests: sizes, times, and leaving in every way there is."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import struct
from collections.abc import Iterator
from typing import Any
from unittest.mock import MagicMock

import httpx
import pytest
import uvicorn
from serverkit import FakeBackend, House, make_house, real_server, wait_until
from uvicorn.server import ServerState

from sapwood.server.protocol import protocol_options

GET_HEALTH = b"GET /health HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"


@contextlib.contextmanager
def connected(url: str) -> Iterator[socket.socket]:
    with socket.create_connection(("127.0.0.1", int(url.rpartition(":")[2])), timeout=10) as connection:
        yield connection


def read_all(connection: socket.socket) -> bytes:
    data = b""
    with contextlib.suppress(ConnectionError):
        while piece := connection.recv(65536):
            data += piece
    return data


def talk(url: str, *pieces: bytes) -> tuple[int, dict[str, Any]]:
    """Send, read until the server closes; the status and body of the first response."""
    with connected(url) as connection:
        with contextlib.suppress(ConnectionError):
            for piece in pieces:
                connection.sendall(piece)
        head, _, payload = read_all(connection).partition(b"\r\n\r\n")
    return int(head.split()[1]), json.loads(payload)


def generate(**fields: Any) -> bytes:
    payload = json.dumps({"text": "a", "sampling_params": {"max_new_tokens": 200}, **fields}).encode()
    return b"POST /generate HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%s" % (len(payload), payload)


@pytest.fixture
def slow_house() -> House:
    return make_house(FakeBackend(step_s=0.01))


@pytest.mark.parametrize(
    "flood",
    [
        b"".join(b"h%d: vvvvvvvvvvvvvvvvvvvv\r\n" % number for number in range(5000)) + b"\r\n",
        b"a: " + b"v" * 200_000 + b"\r\n\r\n",
        b"a: " + b"v" * 200_000,  # and never an end
        b"a" * 200_000,
    ],
    ids=["many", "long", "endless value", "endless name"],
)
def test_a_flood_of_headers_is_refused(flood: bytes) -> None:
    with real_server(make_house()) as url:
        status, answer = talk(url, b"GET /health HTTP/1.1\r\nHost: x\r\n", flood)
        assert status in (431, 400) and answer["error"]["code"] in ("head_too_large", "invalid_request")
        assert talk(url, GET_HEALTH) == (200, {"status": "ready"})


def test_the_limit_on_heads_is_an_option() -> None:
    with real_server(make_house(max_head_bytes=2000)) as url:
        assert httpx.get(f"{url}/health", headers={"a": "v" * 1500}).status_code == 200
        refused = httpx.get(f"{url}/health", headers={"a": "v" * 2500})
        assert refused.status_code == 431 and "2000" in refused.json()["error"]["message"]


def test_a_header_just_below_the_limit_is_fine() -> None:
    with real_server(make_house()) as url:
        assert httpx.get(f"{url}/health", headers={"a": "v" * 60_000}).status_code == 200
        assert httpx.get(f"{url}/health", headers={"a": "v" * 66_000}).status_code == 431
        for _ in range(3):  # the count starts anew with each request of a connection
            with httpx.Client(base_url=url, headers={"a": "v" * 40_000}) as client:
                assert [client.get("/health").status_code for _ in range(4)] == [200] * 4


@pytest.mark.parametrize(
    "noise",
    [b"\x16\x03\x01\x00\xa5", b"FOO / HTTP/1.1\r\n\r\n", b"GET /\xff HTTP/1.1\r\n\r\n", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"],
)
def test_what_is_no_http_is_a_400_in_the_usual_shape(noise: bytes) -> None:
    with real_server(make_house()) as url:
        status, answer = talk(url, noise)
        assert status == 400 and set(answer["error"]) == {"message", "type", "param", "code"}


def test_a_client_that_never_finishes_its_head_is_cut_off() -> None:
    with real_server(make_house(head_timeout_s=0.2)) as url:
        for beginning in (b"", b"GET /health HTTP/1.1\r\nHost:"):
            with connected(url) as connection:
                connection.sendall(beginning)
                assert read_all(connection) == b""
        with connected(url) as connection:  # a second request that is never finished, on a connection that served one
            connection.sendall(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\nGET /hea")
            assert b"200 OK" in connection.recv(4096)
            connection.sendall(b"lth")
            assert b"200 OK" not in read_all(connection)


def test_a_long_answer_is_not_cut_off_by_the_limit_on_heads() -> None:
    with real_server(make_house(FakeBackend(step_s=0.01), head_timeout_s=0.2)) as url:
        body = {"text": "a", "sampling_params": {"max_new_tokens": 60}}
        assert httpx.post(f"{url}/generate", json=body).json()["meta_info"]["completion_tokens"] == 60


def test_a_body_that_trickles_in_is_a_408() -> None:
    with real_server(make_house(body_timeout_s=0.2)) as url:
        status, answer = talk(url, generate()[:-5])
        assert status == 408 and answer["error"]["code"] == "request_timeout"


@pytest.mark.parametrize("reads_again", [False, True])
def test_a_client_that_stops_reading_is_given_up(reads_again: bool) -> None:
    house = make_house(read_timeout_s=0.05)

    async def stall() -> bool:
        config, transport = uvicorn.Config(house.app), MagicMock(spec=asyncio.Transport)
        config.load()
        make = protocol_options(house.context.settings)["http"]
        connection = make(config, ServerState(), {}, asyncio.get_running_loop())
        connection.connection_made(transport)
        connection.pause_writing()
        if reads_again:
            connection.resume_writing()
        await asyncio.sleep(0.2)
        connection.connection_lost(None)
        return bool(transport.abort.called)

    assert asyncio.run(stall()) is not reads_again


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("way", ["close", "reset", "half-close"])
def test_leaving_in_any_way_frees_the_request(slow_house: House, way: str, stream: bool) -> None:
    with real_server(slow_house) as url, connected(url) as connection:
        connection.sendall(generate(stream=stream))
        assert wait_until(lambda: slow_house.frontend.num_open == 1)
        if way == "reset":
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        if way == "half-close":
            connection.shutdown(socket.SHUT_WR)
        else:
            connection.close()
        assert wait_until(lambda: slow_house.frontend.num_open == 0, 1.0)
        assert not slow_house.backend.runs


def test_a_pipeline_whose_client_left_is_freed(slow_house: House) -> None:
    with real_server(slow_house) as url:
        with connected(url) as connection:
            connection.sendall(generate(stream=True) * 3)
            connection.recv(10)
        assert wait_until(lambda: slow_house.frontend.num_open == 0, 5.0)
        assert not slow_house.backend.runs


def test_pipelined_requests_are_answered_in_order() -> None:
    with real_server(make_house()) as url, connected(url) as connection:
        calls = [generate(rid=f"r{number}", sampling_params={"max_new_tokens": 9 - 3 * number}) for number in range(3)]
        connection.sendall(b"".join(calls) + GET_HEALTH)
        text = read_all(connection).decode()
        assert text.count("200 OK") == 4
        assert text.index('"r0"') < text.index('"r1"') < text.index('"r2"') < text.index('"ready"')


def test_a_connection_goes_on_after_errors() -> None:
    with real_server(make_house()) as url, httpx.Client(base_url=url) as client:
        for _ in range(3):
            assert client.post("/generate", json={"text": 5}).status_code == 400
            assert client.post("/nope", content=b"x" * 300_000).status_code == 404
            assert client.post("/generate", json={"text": "a", "sampling_params": {"max_new_tokens": 2}}).json()["text"] == "He"


def test_head_is_answered_as_get_without_a_body() -> None:
    with real_server(make_house()) as url:
        for path, status in (("/health", 200), ("/v1/models", 200), ("/generate", 405), ("/nope", 404)):
            response = httpx.head(url + path)
            assert response.status_code == status and response.content == b""


def test_odd_paths_are_a_404() -> None:
    with real_server(make_house()) as url:
        for path in ("/generate/", "//generate", "/%00generate", "/%zz", "/generate/..", "/GENERATE", "/%2e%2e/etc/passwd", "*"):
            status, _ = talk(
                url, b"POST %s HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: 2\r\n\r\n{}" % path.encode()
            )
            assert status == 404
        assert httpx.post(f"{url}/%67enerate", json={"text": "a", "sampling_params": {"max_new_tokens": 1}}).status_code == 200


def test_chunked_bodies_byte_by_byte() -> None:
    payload = generate().partition(b"\r\n\r\n")[2]
    chunks = b"".join(b"1\r\n%c\r\n" % byte for byte in payload) + b"0\r\n\r\n"
    head = b"POST /generate HTTP/1.1\r\nHost: x\r\nConnection: close\r\nTransfer-Encoding: chunked\r\n\r\n"
    with real_server(make_house()) as url:
        assert talk(url, head, chunks)[1]["meta_info"]["completion_tokens"] == 200
        assert talk(url, head, b"zz\r\n")[0] == 400
        smuggled = head.replace(b"Host: x", b"Host: x\r\nContent-Length: 5")
        assert talk(url, smuggled, chunks)[0] == 400
