"""What a key may ask for: calls in a minute and calls at once, what its answers say of that, and where keys come from."""

from __future__ import annotations

import asyncio
import dataclasses
import ssl
from pathlib import Path
from typing import Any

import httpx
import pytest
from serverkit import FakeBackend, ask, client_of, make_house, real_server, section

from sapwood.config.raw import from_mapping
from sapwood.config.resolve import HostFacts, resolve
from sapwood.config.sections import TlsSection
from sapwood.errors import ConfigError
from sapwood.server.keys import read_keys
from sapwood.server.rates import Allowance
from sapwood.server.tls import check_tls

BODY = {"text": "a", "sampling_params": {"max_new_tokens": 1}}
TLS = Path(__file__).parents[1] / "data" / "tls"
CERT, KEY = str(TLS / "cert.pem"), str(TLS / "key.pem")


def bearer(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"}


def test_a_bucket_fills_evenly() -> None:
    now = [1000.0]
    allowance = Allowance(3, lambda: now[0])
    assert [allowance.take("a") for _ in range(5)] == [True] * 3 + [False] * 2 and allowance.take("b")
    assert (allowance.left("a"), allowance.seconds_to_next("a"), allowance.seconds_to_full("a")) == (0, 20.0, 60.0)
    now[0] += 19.9
    assert not allowance.take("a")
    now[0] += 0.2
    assert allowance.take("a") and not allowance.take("a")
    now[0] += 600
    assert allowance.left("a") == 3 and allowance.seconds_to_next("a") == 0.0


def test_each_key_has_so_many_calls_in_a_minute() -> None:
    house = make_house(api_key="one, two", max_requests_per_minute=2)

    async def run() -> list[httpx.Response]:
        async with client_of(house) as client:
            keys = ["one", "one", "one", "two"]
            return [await client.post("/v1/completions", json={"prompt": "a", "max_tokens": 1}, headers=bearer(k)) for k in keys]

    replies = asyncio.run(run())
    assert [reply.status_code for reply in replies] == [200, 200, 429, 200]
    refused = replies[2]
    assert refused.json()["error"]["code"] == "rate_limit_exceeded" and 1 <= int(refused.headers["retry-after"]) <= 30
    assert [reply.headers["x-ratelimit-remaining-requests"] for reply in replies] == ["1", "0", "0", "1"]
    assert {reply.headers["x-ratelimit-limit-requests"] for reply in replies} == {"2"}
    assert refused.headers["x-ratelimit-reset-requests"].endswith("s") and refused.headers["x-request-id"]


def test_a_key_has_so_many_calls_at_once() -> None:
    house = make_house(FakeBackend(step_s=0.005), max_requests_at_once=1)

    async def run() -> list[int]:
        async with client_of(house) as client:
            slow = asyncio.ensure_future(client.post("/generate", json={"text": "a", "sampling_params": {"max_new_tokens": 40}}))
            while not house.frontend.num_open:
                await asyncio.sleep(0.001)
            second = await client.post("/generate", json=BODY)
            assert second.headers["retry-after"] == "1" and "wait for one" in second.json()["error"]["message"]
            health = await client.get("/health")
            third = [(await slow).status_code, (await client.post("/generate", json=BODY)).status_code]
            failed = [(await client.post("/generate", json={"text": 5})).status_code for _ in range(2)]
            return [second.status_code, health.status_code, *third, *failed]

    assert asyncio.run(run()) == [429, 200, 200, 200, 400, 400]


def test_without_limits_nothing_is_said_of_them() -> None:
    reply = ask(make_house(), "POST", "/generate", json=BODY)
    assert reply.status_code == 200 and not [name for name in reply.headers if "ratelimit" in name]


def test_keys_come_from_the_option_and_from_a_file(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text("# the team's\nthree\n\n four \n")
    house = make_house(api_key="one,two", api_key_file=str(file), admin_api_key="boss")
    for key, status in (("one", 200), ("two", 200), ("three", 200), ("four", 200), ("boss", 200), ("one,two", 401), ("", 401)):
        assert ask(house, "GET", "/v1/models", headers=bearer(key)).status_code == status, key
    assert ask(house, "POST", "/flush_cache", headers=bearer("three")).status_code == 401
    assert ask(house, "POST", "/flush_cache", headers=bearer("boss")).status_code == 200
    shown = ask(house, "GET", "/server_info", headers=bearer("one")).text
    assert "three" not in shown and "boss" not in shown and str(file) not in shown


@pytest.mark.parametrize("settings", [{"api_key_file": "/no/such/file"}, {"api_key": " , "}], ids=["missing", "blank"])
def test_keys_that_cannot_be_had_are_an_error_at_the_start(settings: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="key"):
        read_keys(section(**settings))


def test_https() -> None:
    tls = TlsSection(CERT, KEY, None, None)
    check_tls(tls)
    with real_server(make_house(tls=tls)) as url:
        reply = httpx.get(url.replace("http:", "https:") + "/health", verify=ssl.create_default_context(cafile=CERT))
        assert reply.status_code == 200
        with pytest.raises(httpx.HTTPError):
            httpx.get(url + "/health")
    with real_server(make_house(tls=dataclasses.replace(tls, ca_certs=CERT))) as url, pytest.raises(httpx.HTTPError):
        httpx.get(url.replace("http:", "https:") + "/health", verify=ssl.create_default_context(cafile=CERT))


@pytest.mark.parametrize(
    "tls", [TlsSection("/no/such", None, None, None), TlsSection(KEY, KEY, None, None), TlsSection(CERT, KEY, None, KEY)]
)
def test_a_certificate_that_cannot_be_used_is_an_error_at_the_start(tls: TlsSection) -> None:
    with pytest.raises(ConfigError, match="--ssl-c"):
        check_tls(tls)


def test_a_key_without_its_certificate_is_an_error() -> None:
    with pytest.raises(ConfigError, match="--ssl-certfile"):
        resolve(from_mapping({"model_path": "null", "ssl_keyfile": KEY}, "test"), HostFacts(2, False))
    options = {"model_path": "null", "ssl_certfile": CERT, "max_body_bytes": "2MiB", "max_requests_at_once": 3}
    server = resolve(from_mapping(options, "test"), HostFacts(2, False)).server
    assert server.tls == TlsSection(CERT, None, None, None) and server.max_body_bytes == 2 << 20
    assert server.max_requests_at_once == 3 and server.max_requests_per_minute is None
