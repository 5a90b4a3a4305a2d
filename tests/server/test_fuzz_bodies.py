"""Random bodies for every route, over the real scheduler: never a 5xx, never a hang, and the next request gives the same text.

The examples are the same on every run; SAPWOOD_FUZZ_EXAMPLES=5000 looks further, at random.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from serverkit import House
from test_null_house import at_rest, null_house

WANTED = os.environ.get("SAPWOOD_FUZZ_EXAMPLES")
PROBE = {"text": "the canary", "sampling_params": {"temperature": 0, "max_new_tokens": 8}}
HUGE = 10**30

numbers = st.one_of(
    st.integers(-3, 300), st.sampled_from([2**31, 2**53, 2**63 - 1, 2**63, -(2**63), HUGE, 0.5, 1e-9, -0.0, 1e308, -1e308])
)
texts = st.one_of(
    st.text(max_size=20),
    st.sampled_from(["", "\x00", "a\u0301", "\U0001f469\u200d\U0001f4bb", "<|im_end|>", "\u202e", "x" * 3000, "\ufeff", "%s{}"]),
)
junk = st.recursive(
    st.one_of(st.none(), st.booleans(), numbers, texts),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=4), inner, max_size=3)),
    max_leaves=6,
)
ids = st.lists(st.integers(0, 258), min_size=1, max_size=12)
wild_ids = st.lists(st.one_of(st.integers(-2, 262), st.just(HUGE)), max_size=4)
words = st.sampled_from(
    ["e", "th", "\u00e9", " ", "zzz", "a.*b", "[a-z]+q", "(", "(?=x)", "(a|aa)+$", "\\p{L}{3}", "(?i)x{2,900}"]
)
stops = st.one_of(words, st.lists(words, max_size=4), st.lists(words, min_size=33, max_size=34))
flags = st.one_of(st.booleans(), st.none())
biases = st.dictionaries(st.one_of(st.integers(-1, 260).map(str), st.just("x")), st.floats(-1e3, 1e3), max_size=4)
logprob_counts = st.sampled_from([0, 1, 5, 128, 129, -1])

SAMPLING: dict[str, st.SearchStrategy[Any]] = {
    "temperature": st.sampled_from([0, 0.7, 1, 2.5, 1e-7]),
    "top_p": st.sampled_from([0.1, 1, 1.0001, 0]),
    "top_k": st.sampled_from([-1, 1, 40, 0, 2**31]),
    "min_p": st.sampled_from([0, 0.2, 1, 1.5]),
    "frequency_penalty": st.sampled_from([0, 2, -2, 2.1]),
    "presence_penalty": st.sampled_from([0, 1.5, -3]),
    "repetition_penalty": st.sampled_from([1, 0.5, 2, 0]),
    "logit_bias": biases,
    "n": st.sampled_from([1, 2, 3, 0, 129]),
    "stop": stops,
    "stop_token_ids": st.one_of(ids, wild_ids),
    "stop_regex": stops,
    "no_stop_trim": flags,
    "ignore_eos": flags,
    "skip_special_tokens": flags,
}
COUNTS = st.sampled_from([0, 1, 7, 30, 513, -1])
NATIVE = {
    "text": st.one_of(texts, st.lists(texts, max_size=3)),
    "input_ids": st.one_of(ids, wild_ids, st.lists(ids, max_size=3)),
    "stream": flags,
    "rid": st.one_of(texts, st.lists(texts, max_size=3)),
    "return_logprob": st.one_of(flags, st.lists(st.booleans(), max_size=3)),
    "logprob_start_len": st.sampled_from([-1, 0, 2, 20, -2]),
    "top_logprobs_num": logprob_counts,
    "token_ids_logprob": st.one_of(ids, wild_ids, st.lists(ids, max_size=2)),
    "return_text_in_logprobs": flags,
    "return_prompt_token_ids": flags,
    "priority": numbers,
    "cache_salt": texts,
    "extra_key": texts,
}
OPENAI = {
    **SAMPLING,
    "max_tokens": COUNTS,
    "max_completion_tokens": COUNTS,
    "min_tokens": COUNTS,
    "seed": numbers,
    "stream": flags,
    "stream_options": st.fixed_dictionaries({}, optional={"include_usage": flags, "continuous_usage_stats": flags}),
    "rid": texts,
    "user": junk,
}
parts = st.lists(st.fixed_dictionaries({"type": st.sampled_from(["text", "image_url"]), "text": texts}), max_size=2)
roles = st.sampled_from(["system", "developer", "user", "assistant", "tool", "x"])
messages = st.lists(st.fixed_dictionaries({"role": roles, "content": st.one_of(texts, parts, st.none())}), max_size=3)
prompts = st.one_of(texts, ids, wild_ids, st.lists(texts, max_size=3), st.lists(ids, max_size=3))


def some(required: dict[str, Any], fields: dict[str, Any]) -> st.SearchStrategy[dict[str, Any]]:
    """The required fields and a few of the others (with all of them, one would always be wrong)."""
    names = st.lists(st.sampled_from(sorted(fields.keys() - required.keys())), max_size=4, unique=True)
    return names.flatmap(lambda chosen: st.fixed_dictionaries({**required, **{name: fields[name] for name in chosen}}))


def body(required: dict[str, Any], fields: dict[str, Any]) -> st.SearchStrategy[Any]:
    """Mostly what the route knows, now and then one field of any kind."""
    known = some(required, fields)
    spoiled = st.tuples(known, st.sampled_from(sorted({**required, **fields})), junk).map(lambda t: {**t[0], t[1]: t[2]})
    return st.one_of(known, known, known, spoiled, junk)


OLLAMA_OPTIONS = some(
    {"num_predict": COUNTS},
    {
        **{name: SAMPLING[name] for name in ("temperature", "top_p", "top_k", "min_p", "presence_penalty", "stop")},
        "repeat_penalty": SAMPLING["repetition_penalty"],
        "seed": numbers,
        "num_ctx": numbers,
    },
)
SAMPLING_PARAMS = some({"max_new_tokens": COUNTS}, {**SAMPLING, "sampling_seed": numbers})
ROUTES = {
    "/generate": st.one_of(
        body({"text": texts, "sampling_params": SAMPLING_PARAMS}, NATIVE),
        body({"input_ids": ids, "sampling_params": SAMPLING_PARAMS}, NATIVE),
    ),
    "/v1/chat/completions": body(
        {"messages": messages, "max_tokens": COUNTS}, {**OPENAI, "logprobs": flags, "top_logprobs": logprob_counts}
    ),
    "/v1/completions": body({"prompt": prompts, "max_tokens": COUNTS}, {**OPENAI, "logprobs": logprob_counts, "echo": flags}),
    "/v1/messages": body(
        {"messages": messages, "max_tokens": COUNTS},
        {
            **{name: SAMPLING[name] for name in ("temperature", "top_p", "top_k")},
            "stop_sequences": stops,
            "stream": flags,
            "system": st.one_of(texts, parts),
            "thinking": junk,
            "tools": junk,
        },
    ),
    "/api/chat": body({"messages": messages, "options": OLLAMA_OPTIONS}, {"stream": flags, "format": junk, "keep_alive": junk}),
    "/api/generate": body(
        {"prompt": texts, "options": OLLAMA_OPTIONS},
        {"stream": flags, "raw": flags, "system": texts, "suffix": texts, "context": junk},
    ),
    "/tokenize": body({"prompt": texts}, {"text": texts, "messages": messages, "add_special_tokens": flags}),
    "/detokenize": body({"tokens": st.one_of(ids, wild_ids, st.lists(ids, max_size=2))}, {"skip_special_tokens": flags}),
    "/abort_request": body({"rid": texts}, {"abort_all": flags, "abort_message": texts}),
}


class Prober:
    """One house and one event loop for all examples."""

    def __init__(self) -> None:
        self.house: House = null_house()
        self.loop = asyncio.new_event_loop()
        self.canary = self.post("/generate", json.dumps(PROBE).encode()).json()["text"]

    def post(self, path: str, data: bytes) -> httpx.Response:
        return self.loop.run_until_complete(asyncio.wait_for(self._post(path, data), 20))

    async def _post(self, path: str, data: bytes) -> httpx.Response:
        backend: Any = self.house.backend
        pump = asyncio.ensure_future(backend.pump())
        transport = httpx.ASGITransport(self.house.app)
        try:
            async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
                response = await client.post(path, content=data)
            while not at_rest(self.house):
                await asyncio.sleep(0)
                assert not pump.done()
            return response
        finally:
            pump.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await pump


@pytest.fixture(scope="module")
def prober() -> Iterator[Prober]:
    prober = Prober()
    yield prober
    prober.loop.close()


def check_error(path: str, body: dict[str, Any]) -> None:
    """The error of a response in the shape of its dialect."""
    error = body["error"]
    if path.startswith("/api/"):
        assert error and isinstance(error, str)
    elif path == "/v1/messages":
        assert body["type"] == "error" and set(error) == {"message", "type"} and error["message"]
    else:
        assert set(error) == {"message", "type", "param", "code"} and error["message"]


def check(prober: Prober, path: str, data: bytes) -> None:
    response = prober.post(path, data)
    assert response.status_code < 500, (response.status_code, response.text)
    if response.status_code >= 400:
        check_error(path, response.json())
    elif response.headers["content-type"].startswith("text/event-stream"):
        end = '{"type":"message_stop"}' if path == "/v1/messages" else "[DONE]"
        assert response.text.endswith(f"data: {end}\n\n") and "engine_failed" not in response.text
    elif response.headers["content-type"] == "application/x-ndjson":
        assert json.loads(response.text.splitlines()[-1])["done"] is True
    backend: Any = prober.house.backend
    stats = backend.scheduler.stats()
    assert stats.num_running == stats.num_waiting == 0
    assert stats.num_free_pages + stats.num_cached_pages == stats.num_pages
    assert backend.detokenizer.num_watched == 0
    assert prober.post("/generate", json.dumps(PROBE).encode()).json()["text"] == prober.canary


@pytest.mark.parametrize("path", ROUTES)
@pytest.mark.timeout(3600 if WANTED else 120)
def test_no_body_breaks_the_server(prober: Prober, path: str) -> None:
    @settings(
        max_examples=int(WANTED or 120),
        derandomize=not WANTED,
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(ROUTES[path])
    def run(value: Any) -> None:
        check(prober, path, json.dumps(value).encode())

    run()
    assert prober.house.frontend.num_open == 0


@pytest.mark.timeout(3600 if WANTED else 120)
def test_no_damaged_json_breaks_the_server(prober: Prober) -> None:
    @settings(max_examples=int(WANTED or 150), derandomize=not WANTED, deadline=None, database=None)
    @given(st.sampled_from(sorted(ROUTES)), st.integers(0, 60), st.binary(max_size=6))
    def run(path: str, place: int, damage: bytes) -> None:
        whole = json.dumps({"text": "a", "prompt": "a", "messages": [{"role": "user", "content": "a"}], "max_tokens": 1}).encode()
        check(prober, path, whole[:place] + damage + whole[place + 2 :])

    run()
    assert prober.house.frontend.num_open == 0
