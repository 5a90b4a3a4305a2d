"""Requests that once cost the server minutes, or memory without end: each is refused at once, before the work is done."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest
from serverkit import FakeBackend, House, ask, client_of, make_house

from sapwood.server.limits import ServingLimits

CONTEXT_LEN, VOCAB_SIZE = 256, 259


def counting_house(**settings: Any) -> tuple[House, list[int]]:
    """A house, and the lengths of the texts that it tokenized."""
    backend = FakeBackend()
    house = make_house(backend, max_body_bytes=64 << 20, **settings)
    limits = house.frontend.limits
    house.frontend.start_serving(
        ServingLimits(
            limits.context_len,
            limits.pool_tokens,
            limits.vocab_size,
            limits.max_open_requests,
            allow_auto_truncate=limits.allow_auto_truncate,
            longest_token_chars=13,
        )
    )
    lengths: list[int] = []
    tokenize = backend.tokenize

    async def counted(pieces: Any, add_special: bool) -> list[int]:
        lengths.append(sum(len(text) for text, _ in pieces))
        return await tokenize(pieces, add_special)

    backend.tokenize = counted  # type: ignore[method-assign]
    return house, lengths


def refused(house: House, path: str, body: dict[str, Any], field: str) -> str:
    response = ask(house, "POST", path, json=body)
    assert response.status_code == 400, response.text[:500]
    error = response.json()["error"]
    assert error["param"] == field and field in error["message"]
    assert house.frontend.num_open == 0
    return str(error["message"])


@pytest.mark.parametrize("path", ["/generate", "/v1/completions"])
def test_a_million_prompts_are_refused_before_the_first_is_tokenized(path: str) -> None:
    house, lengths = counting_house()
    name = "text" if path == "/generate" else "prompt"
    refused(house, path, {name: ["a"] * 1_000_000}, "n")
    assert lengths == []


def test_samples_count_like_prompts() -> None:
    house, lengths = counting_house()
    refused(house, "/generate", {"text": ["a"] * 40, "sampling_params": {"n": 2}}, "n")
    refused(house, "/v1/completions", {"prompt": ["a"] * 40, "n": 2}, "n")
    refused(house, "/v1/chat/completions", {"messages": [{"role": "user", "content": "a"}], "n": 65}, "n")
    assert lengths == []


def test_a_text_that_no_prompt_can_hold_is_not_tokenized() -> None:
    house, lengths = counting_house()
    long = "hello world " * 1_000_000
    refused(house, "/generate", {"text": long}, "text")
    refused(house, "/generate", {"text": ["a", long]}, "text")
    refused(house, "/v1/completions", {"prompt": long}, "prompt")
    for content in (long, [{"type": "text", "text": long}]):
        refused(house, "/v1/chat/completions", {"messages": [{"role": "user", "content": content}]}, "messages")
    refused(house, "/v1/chat/completions", {"messages": [{"role": "user", "content": ""}] * 100_000}, "messages")
    refused(house, "/tokenize", {"prompt": "a" * 5_000_000}, "prompt")
    refused(house, "/tokenize", {"prompt": ["a"] * 50_000}, "prompt")
    assert lengths == []


def test_the_longest_text_that_may_fit_is_tokenized() -> None:
    house, lengths = counting_house()
    fits = "<|endoftext|>" * (CONTEXT_LEN - 1)
    assert ask(house, "POST", "/generate", json={"text": fits, "sampling_params": {"max_new_tokens": 1}}).status_code == 200
    refused(house, "/generate", {"text": fits + "<|endoftext|>"}, "text")
    refused(house, "/generate", {"text": fits + "<|endoftext|>x"}, "text")
    assert lengths == [13 * (CONTEXT_LEN - 1), 13 * CONTEXT_LEN]


def test_a_server_that_shortens_prompts_takes_long_texts() -> None:
    house, lengths = counting_house(allow_auto_truncate=True)
    body = {"text": "a" * 10_000, "sampling_params": {"max_new_tokens": 1}}
    assert ask(house, "POST", "/generate", json=body).json()["meta_info"]["prompt_tokens"] == CONTEXT_LEN - 1
    assert lengths == [10_000]


HEAVY = [
    ["(?:(?:[a-z ,.]{0,20}){0,20}){0,2}Q"],
    ["(?i)(?:.?){999}Q"],
    [f"(?:[a-z]{{0,9}}){{0,40}}Q{number}" for number in range(32)],
]


@pytest.mark.parametrize("patterns", HEAVY, ids=["nested", "repeated", "many"])
def test_regexes_that_would_stop_the_detokenizer_are_refused(patterns: list[str]) -> None:
    house, _ = counting_house()
    started_s = time.monotonic()
    refused(house, "/generate", {"text": "a", "sampling_params": {"stop_regex": patterns}}, "stop_regex")
    assert time.monotonic() - started_s < 10


def test_usual_regexes_are_not() -> None:
    house, _ = counting_house()
    usual = [
        r"\n\n[A-Z]\w*:",
        r"(?i)\b(?:user|assistant)\s*:",
        r"\d{4}-\d{2}-\d{2}",
        r"[^\n]{1,80}#",
        *(f"end{n}.*now" for n in range(28)),
    ]
    body = {"text": "a", "sampling_params": {"stop_regex": usual, "max_new_tokens": 3}}
    assert ask(house, "POST", "/generate", json=body).status_code == 200
    assert ask(house, "POST", "/generate", json={**body, "sampling_params": {"stop_regex": r"\p{L}+\d"}}).status_code == 200


def test_prompt_logprobs_are_limited_over_candidates_and_samples() -> None:
    house, _ = counting_house()
    scored = {"input_ids": [1] * 250, "return_logprob": True, "logprob_start_len": 0, "top_logprobs_num": 128}
    asked = {"token_ids_logprob": list(range(100)), "sampling_params": {"n": 64, "max_new_tokens": 1}}
    refused(house, "/generate", {**scored, **asked}, "top_logprobs_num")
    assert ask(house, "POST", "/generate", json={**scored, "sampling_params": {"n": 4, "max_new_tokens": 1}}).status_code == 200


def test_stop_strings_are_limited_together() -> None:
    house, _ = counting_house()
    refused(house, "/generate", {"text": "a", "sampling_params": {"stop": ["e" * 200] * 32}}, "stop")


def test_a_compressed_body_is_named_as_such() -> None:
    response = ask(make_house(), "POST", "/generate", content=b"\x1f\x8b\x08", headers={"content-encoding": "gzip"})
    assert response.status_code == 415 and "content-encoding" in response.json()["error"]["message"]


def test_flush_cache_can_wait_for_an_idle_server() -> None:
    house = make_house(FakeBackend(step_s=0.005))

    async def run() -> list[int]:
        async with client_of(house) as client:
            call = asyncio.ensure_future(client.post("/generate", json={"text": "a", "sampling_params": {"max_new_tokens": 40}}))
            while not house.frontend.num_open:
                await asyncio.sleep(0.001)
            statuses = [
                (await client.post("/flush_cache")).status_code,
                (await client.post("/flush_cache?timeout=10")).status_code,
            ]
            await call
            for timeout in ("-1", "nan", "inf", "soon", "1e9"):
                response = await client.get(f"/flush_cache?timeout={timeout}")
                assert response.json()["error"]["param"] == "timeout"
                statuses.append(response.status_code)
            return statuses

    assert asyncio.run(run()) == [400, 200, 400, 400, 400, 400, 400]


def test_tokenizer_info_is_there_for_evaluators() -> None:
    info = ask(make_house(), "GET", "/tokenizer_info").json()
    assert info["vocab_size"] == VOCAB_SIZE and info["model_max_length"] == CONTEXT_LEN
