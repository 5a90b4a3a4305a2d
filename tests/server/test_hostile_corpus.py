"""A corpus of hostile requests for every route of a live server, made from tables: each gets its documented 4xx, the
canary's answer never changes, and every page is there at the end. What breaks HTTP itself is closed by its timeout.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

import httpx
import pytest
from corpus_extremes import compile_cases, list_cases, name_cases, number_cases
from corpus_fields import Hostile, typed_cases
from serverkit import House, real_server, wait_until
from test_connection_limits import connected, read_all
from test_null_house import at_rest, null_house

from sapwood.server.openapi import BODIES

CANARY = {"text": "the canary", "sampling_params": {"temperature": 0, "max_new_tokens": 8}}
STRIDE = 1 if os.environ.get("SAPWOOD_LONG_TESTS") else 7
"""Of the typed cases, of which there are some 2,000, every one or every seventh."""
ENCODINGS = (
    b"", b"\x00", b"{", b"null", b"5", b'"text"', b"[]", b"{}}", b'{"a": 1,}', b"\xef\xbb\xbf{}", b"\xff\xfe{\x00}\x00",
    b'"\xc3("', b'"\\ud800"', b"{'a': 1}", b"\x80\x04\x95", b"PK\x03\x04", b"<xml/>", b'{"a":' * 3000, b"a=1&b=2",
)  # fmt: skip
"""Bodies that are no JSON object, or not in UTF-8; pickles and archives among them."""
BODY_NOT_NEEDED = {"/pause_generation", "/release_memory_occupation", "/resume_memory_occupation", "/start_profile"}
HEAD = b"POST /generate HTTP/1.1\r\nHost: x\r\n"
HALF_SENT = {
    "half a head": HEAD,
    "half a header": HEAD + b"Content-Le",
    "half a body": HEAD + b'Content-Length: 100\r\n\r\n{"text": "a"',
    "no body": HEAD + b"Content-Length: 100\r\n\r\n",
    "half a chunk": HEAD + b'Transfer-Encoding: chunked\r\n\r\n50\r\n{"text"',
    "no last chunk": HEAD + b"Transfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n",
}


def encoding_cases() -> Iterator[Hostile]:
    """Every route with every one of those, in turn."""
    for number, path in enumerate(BODIES):
        for data in ENCODINGS[number % 4 :: 4]:
            if data or path not in BODY_NOT_NEEDED:
                yield Hostile(path, data)


def method_cases() -> Iterator[Hostile]:
    """Methods that a route does not have, and paths that no route has."""
    for path in BODIES:
        for method in ("GET", "DELETE", "PATCH"):
            yield Hostile(path, b"", "", (400, 404, 405), method)
    for path in (
        "/..%2f..%2fetc/passwd",
        "/v1/../../etc",
        "/%00",
        "/v1/chat/completions/",
        "/.env",
        "/debug/pprof",
        "/invocations",
    ):
        yield Hostile(path, b"{}", "", (404, 405))


CORPUS = [
    *list(typed_cases())[::STRIDE],
    *(case for family in (number_cases, list_cases, compile_cases, name_cases) for case in family()),
    *encoding_cases(),
    *method_cases(),
]


@pytest.fixture(scope="module")
def house() -> House:
    return null_house()


@pytest.fixture(scope="module")
def url(house: House) -> Iterator[str]:
    with real_server(house) as found:
        yield found


def canary(url: str) -> str:
    return str(httpx.post(f"{url}/generate", json=CANARY).json()["text"])


def wrong_with(client: httpx.Client, case: Hostile) -> str:
    """What is not as it should be in the answer to a case; nothing, if all is well."""
    reply = client.request(case.method, case.path, content=case.data, headers={"content-type": case.content_type})
    is_fine = reply.status_code in case.statuses and case.names in reply.text and reply.json()["error"]
    return (
        "" if is_fine else f"{case.method} {case.path} {case.names} {case.data[-200:]!r}: {reply.status_code} {reply.text[:300]}"
    )


def test_every_hostile_request_gets_its_4xx(house: House, url: str) -> None:
    assert len(CORPUS) >= 300 and {case.path for case in CORPUS} >= set(BODIES)
    before = canary(url)
    with httpx.Client(base_url=url, timeout=10) as client:
        wrong = [said for case in CORPUS if (said := wrong_with(client, case))]
    assert wrong == []
    assert canary(url) == before
    assert wait_until(lambda: at_rest(house))
    now = httpx.get(f"{url}/server_info").json()["internal_states"][0]
    assert now["num_free_pages"] + now["num_cached_pages"] == now["num_pages"] == 256
    assert now["num_evictable_pages"] == now["num_cached_pages"]


@pytest.mark.parametrize(
    "text", ["<|im_end|>", "<|endoftext|>", "a\u0301\u202e", "\U0001f469\u200d\U0001f4bb", "\x00", "{{7*7}}", "%s%n"]
)
def test_odd_texts_are_texts(url: str, text: str) -> None:
    """What looks like a control token, or like a template, reaches the model as the characters it is made of."""
    messages = [{"role": "user", "content": text}]
    plain = [{"role": "user", "content": "x" * len(text.encode())}]
    counts = [
        httpx.post(f"{url}/v1/chat/completions", json={"messages": each, "max_tokens": 1}).json()["usage"]["prompt_tokens"]
        for each in (messages, plain)
    ]
    assert counts[0] == counts[1]  # a token for each byte: nothing became a control token


def is_cut_off(url: str, beginning: bytes, drop: bytes) -> bool:
    """Whether a client that goes on sending a little, and never ends, loses its connection."""
    with connected(url) as connection:
        connection.settimeout(0.02)
        connection.sendall(beginning)
        for _ in range(500):
            try:
                if connection.recv(100) == b"":
                    return True
            except TimeoutError:
                pass
            except ConnectionError:
                return True
            with contextlib.suppress(ConnectionError):
                connection.sendall(drop)
    return False


def test_half_sent_and_slow_requests_are_closed() -> None:
    house = null_house(body_timeout_s=0.3, head_timeout_s=0.3)
    with real_server(house) as url:
        check_half_sent(house, url)


def check_half_sent(house: House, url: str) -> None:
    before = canary(url)
    for name, beginning in HALF_SENT.items():
        with connected(url) as connection:
            connection.sendall(beginning)
            answer = read_all(connection)  # until the server closes
            assert answer == b"" or b" 408 " in answer.split(b"\r\n")[0], name
    assert is_cut_off(url, HEAD, b"X-a: b\r\n")
    assert canary(url) == before and wait_until(lambda: at_rest(house))
