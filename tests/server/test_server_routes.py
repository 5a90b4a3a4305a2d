"""Keys, health, limits, metrics, information, tokenizing, admin: everything around the completions."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import pytest
from serverkit import FakeBackend, ask, client_of, make_house

from sapwood.messages.types import Abort
from sapwood.observability.metrics import READINGS, Metrics, NullMetrics
from sapwood.server.limits import ServingState

BODY = {"text": "a", "sampling_params": {"max_new_tokens": 2}}
METRIC_NAMES = [
    "num_requests_running",
    "num_requests_waiting",
    "kv_cache_usage_perc",
    "prefix_cache_queries_total",
    "prefix_cache_hits_total",
    "prompt_tokens_total",
    "generation_tokens_total",
    "time_to_first_token_seconds_bucket",
    "inter_token_latency_seconds_count",
    "e2e_request_latency_seconds_sum",
    "cached_tokens_total",
    "num_retracted_reqs_total",
    "num_aborted_requests_total",
    "token_usage",
    "cache_hit_rate",
    "evicted_tokens_total",
    "http_responses_total",
]
KEYS = {"api_key": "user-key", "admin_api_key": "admin-key"}


def bearer(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"}


@pytest.mark.parametrize(
    ("method", "path"),
    [("POST", "/generate"), ("POST", "/v1/completions"), ("GET", "/v1/models"), ("GET", "/metrics"), ("GET", "/server_info"),
     ("POST", "/tokenize"), ("GET", "/docs"), ("GET", "/openapi.json"), ("GET", "/nope"), ("GET", "/health_generate"),
     ("GET", "/flush_cache"), ("POST", "/abort_request"), ("GET", "/health/"), ("GET", "//health")],
)  # fmt: skip
def test_every_route_but_health_needs_the_key(method: str, path: str) -> None:
    house = make_house(**KEYS)
    for headers in ({}, bearer("wrong"), bearer(""), {"authorization": "user-key"}, bearer("user-kéy")):
        response = ask(house, method, f"http://test{path}", headers={k: v.encode() for k, v in headers.items()}, json=BODY)
        assert response.status_code == 401 and response.json()["error"]["code"] == "invalid_api_key"
        assert response.headers["www-authenticate"] == "Bearer"


def test_keys_open_what_they_should() -> None:
    house = make_house(**KEYS)
    for path in ("/health", "/ready"):
        assert ask(house, "GET", path).status_code == 200
    for headers in (bearer("user-key"), bearer("admin-key"), {"x-api-key": "user-key"}):
        assert ask(house, "POST", "/generate", headers=headers, json=BODY).status_code == 200
    assert ask(house, "GET", "/flush_cache", headers=bearer("user-key")).status_code == 401
    assert ask(house, "GET", "/flush_cache", headers=bearer("admin-key")).status_code == 200
    only_admin = make_house(admin_api_key="admin-key")
    assert ask(only_admin, "POST", "/generate", json=BODY).status_code == 200
    assert ask(only_admin, "GET", "/flush_cache").status_code == 401
    only_user = make_house(api_key="user-key")
    assert ask(only_user, "GET", "/flush_cache", headers=bearer("user-key")).status_code == 200
    assert ask(make_house(), "GET", "/flush_cache").status_code == 200


def test_pages_of_other_sites_are_refused() -> None:
    house = make_house()
    for headers, status in (
        ({"origin": "http://evil.example"}, 403),
        ({"origin": "null"}, 403),
        ({"origin": "http://[bad"}, 403),
        ({"origin": "http://evil.example:30000", "host": "evil.example:30000"}, 403),
        ({"host": "evil.example:30000"}, 403),
        ({"host": "127.0.0.1.evil.example"}, 403),
        ({"host": "EVIL.example."}, 403),
        ({"host": "127.0.0.1:30000"}, 200),
        ({"host": "[::1]:30000"}, 200),
        ({"host": "my-machine.local"}, 200),
        ({"origin": "http://localhost:30000", "host": "localhost:30000"}, 200),
        ({}, 200),
    ):
        assert ask(house, "POST", "/generate", headers=headers, json=BODY).status_code == status, headers
    for shown in ask(house, "GET", "/v1/models").headers:  # no page of another site may read anything
        assert not shown.startswith("access-control-")
    assert ask(house, "OPTIONS", "/generate", headers={"access-control-request-method": "POST"}).status_code == 405
    open_house = make_house(api_key="k")
    headers = {"origin": "http://my.site", "host": "my.site", **bearer("k")}
    assert ask(open_house, "POST", "/generate", headers=headers, json=BODY).status_code == 200


@pytest.mark.parametrize(
    ("state", "health", "ready", "generate"),
    [
        (ServingState.STARTING, 503, 503, 503),
        (ServingState.READY, 200, 200, 200),
        (ServingState.RECOVERING, 200, 503, 503),
        (ServingState.DRAINING, 200, 503, 503),
        (ServingState.FAILED, 503, 503, 503),
    ],
)
def test_health_and_readiness_by_state(state: ServingState, health: int, ready: int, generate: int) -> None:
    house = make_house()
    house.frontend.state = state
    for method, path, status in (("GET", "/health", health), ("GET", "/ready", ready), ("POST", "/generate", generate)):
        response = ask(house, method, path, json=BODY if method == "POST" else None)
        assert response.status_code == status
        assert ("retry-after" in response.headers) == (status == 503)


def test_health_generate_makes_a_token() -> None:
    house = make_house()
    assert ask(house, "GET", "/health_generate").status_code == 200
    assert len(house.backend.sent) == 1 and house.frontend.num_open == 0


def test_a_full_server_says_429_and_when_to_come_back() -> None:
    async def run() -> None:
        house = make_house(max_queued_requests=2)
        house.backend.is_paused = True
        async with client_of(house) as client:
            first = [asyncio.ensure_future(client.post("/generate", json=BODY)) for _ in range(2)]
            while house.frontend.num_open < 2:
                await asyncio.sleep(0.001)
            for path, body in (("/generate", BODY), ("/v1/completions", {"prompt": "a", "stream": True})):
                response = await client.post(path, json=body)
                assert response.status_code == 429 and int(response.headers["retry-after"]) >= 1
                assert response.json()["error"]["code"] == "rate_limit_exceeded"
            house.backend.is_paused = False
            assert [response.status_code for response in await asyncio.gather(*first)] == [200, 200]

    asyncio.run(run())


def test_request_ids_are_returned_when_they_are_fit_to_be() -> None:
    house = make_house()
    assert ask(house, "GET", "/health", headers={"x-request-id": "abc-1"}).headers["x-request-id"] == "abc-1"
    for bad in ("x" * 200, "a b", ""):
        assert ask(house, "GET", "/health", headers={"x-request-id": bad}).headers["x-request-id"] not in (bad, "")


def test_abort_request_by_prefix_and_all() -> None:
    async def run(body: dict[str, Any], route: str, call: dict[str, Any]) -> tuple[httpx.Response, dict[str, Any]]:
        house = make_house()
        house.backend.is_paused = True
        async with client_of(house) as client:
            waiting = asyncio.ensure_future(client.post(route, json=call))
            while not house.frontend.num_open:
                await asyncio.sleep(0.001)
            answer = await client.post("/abort_request", json=body)
            assert answer.status_code == 200 and house.backend.sent_of(Abort)
            return await waiting, answer.json()

    native = {"text": ["a", "b"], "rid": "job"}
    response, answer = asyncio.run(run({"rid": "jo", "abort_message": "enough"}, "/generate", native))
    assert answer["num_aborted"] == 2
    assert [item["meta_info"]["finish_reason"]["type"] for item in response.json()] == ["abort", "abort"]
    assert response.json()[0]["meta_info"]["finish_reason"]["message"] == "enough"
    response, _ = asyncio.run(run({"abort_all": True}, "/v1/completions", {"prompt": "a"}))
    assert response.status_code == 499 and response.json()["error"]["code"] == "aborted"


def test_flush_cache_is_refused_while_requests_run() -> None:
    async def run() -> None:
        house = make_house(FakeBackend(step_s=0.01))
        async with client_of(house) as client:
            waiting = asyncio.ensure_future(client.post("/generate", json={"text": "a"}))
            while not house.frontend.num_open:
                await asyncio.sleep(0.001)
            assert (await client.post("/flush_cache")).status_code == 400
            waiting.cancel()
            await asyncio.gather(waiting, return_exceptions=True)
            while house.frontend.num_open:
                await asyncio.sleep(0.001)
            assert (await client.get("/flush_cache")).json()["success"] is True

    asyncio.run(run())


def test_information_about_model_and_server() -> None:
    house = make_house(**KEYS)
    for path in ("/model_info", "/get_model_info"):
        info = ask(house, "GET", path, headers=bearer("user-key")).json()
        assert (info["served_model_name"], info["max_model_len"], info["is_generation"]) == ("fake", 256, True)
    for path in ("/server_info", "/get_server_info"):
        response = ask(house, "GET", path, headers=bearer("user-key"))
        assert response.json()["status"] == "ready" and "num_running" in response.json()["internal_states"][0]
        assert "user-key" not in response.text and "admin-key" not in response.text


def test_tokenize_and_back() -> None:
    house = make_house()
    for prefix in ("", "/v1"):
        answer = ask(house, "POST", f"{prefix}/tokenize", json={"prompt": "ab<|im_end|>"}).json()
        assert answer == {"tokens": [97, 98, 258], "count": 3, "max_model_len": 256}
        plain = ask(house, "POST", f"{prefix}/tokenize", json={"prompt": "<|im_end|>", "parse_special": False}).json()
        assert plain["count"] == 10
        batch = ask(house, "POST", f"{prefix}/tokenize", json={"text": ["a", "bc"]}).json()
        assert batch["tokens"] == [[97], [98, 99]] and batch["count"] == [1, 2]
        chat = ask(house, "POST", f"{prefix}/tokenize", json={"messages": [{"role": "user", "content": "<|im_end|>"}]}).json()
        assert chat["tokens"] == [257, *b"user\n<|im_end|>", 258, *b"\n", 257, *b"assistant\n"]
        assert ask(house, "POST", f"{prefix}/detokenize", json={"tokens": [97, 98]}).json()["text"] == "ab"
        assert ask(house, "POST", f"{prefix}/detokenize", json={"tokens": [[97], [258]]}).json()["text"] == ["a", ""]
    shown = ask(house, "POST", "/detokenize", json={"tokens": [258], "skip_special_tokens": False})
    assert shown.json()["text"] == "<|im_end|>"


def test_metrics_have_the_names_that_dashboards_know() -> None:
    house = make_house()
    ask(house, "POST", "/generate", json=BODY)
    response = ask(house, "GET", "/metrics")
    assert response.headers["content-type"].startswith("text/plain")
    for name in METRIC_NAMES:
        assert f"sapwood:{name}{{" in response.text, name
    assert 'sapwood:request_success_total{finished_reason="length",model_name="fake"} 1.0' in response.text
    assert 'sapwood:cache_hit_rate{model_name="fake"} 0.4' in response.text
    assert ask(make_house(enable_metrics=False), "GET", "/metrics").status_code == 404


def test_histograms_count_what_they_saw_and_registries_are_their_own() -> None:
    one, other = Metrics("a"), Metrics("b")
    for value in (0.0005, 0.003, 99.0):
        one.observe_tokens(value, is_first=False)
    text = one.render().decode()
    assert 'sapwood:inter_token_latency_seconds_bucket{le="0.001",model_name="a"} 1.0' in text
    assert 'sapwood:inter_token_latency_seconds_bucket{le="+Inf",model_name="a"} 3.0' in text
    assert 'sapwood:inter_token_latency_seconds_count{model_name="b"} 0.0' in other.render().decode()
    assert len({reading.name for reading in READINGS}) == len(READINGS)
    assert NullMetrics().render() == b""


def test_the_openapi_page_describes_the_bodies() -> None:
    page = ask(make_house(), "GET", "/openapi.json").json()
    body = page["paths"]["/v1/chat/completions"]["post"]["requestBody"]["content"]["application/json"]["schema"]
    names = [part["$ref"].rsplit("/", 1)[1] for part in body["allOf"]]
    assert "messages" in page["components"]["schemas"][names[0]]["properties"]
    assert page["paths"]["/generate"]["post"]["requestBody"]["required"] is True
    assert ask(make_house(), "GET", "/docs").status_code == 200
