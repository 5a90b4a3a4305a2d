"""The Ollama dialect: through the official client, and its lines and errors on the wire."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx
import ollama
import pytest
from serverkit import FakeBackend, House, ask, make_house, real_server, wait_until
from test_disconnects import aborted, in_loop, send

from sapwood.errors import EngineFailed
from sapwood.messages.types import Submit, unpack_ids

CHAT, GENERATE = "/api/chat", "/api/generate"
MESSAGES = [{"role": "user", "content": "hi"}]
PROMPT_TOKENS = len("<user\nhi>\n<assistant\n")
BODIES: dict[str, dict[str, Any]] = {CHAT: {"messages": MESSAGES}, GENERATE: {"prompt": "hi"}}
DURATIONS = ("total_duration", "load_duration", "prompt_eval_duration", "eval_duration")


def post(path: str, house: House | None = None, **fields: Any) -> httpx.Response:
    return ask(house or make_house(), "POST", path, json={"model": "fake", **BODIES.get(path, {}), **fields})


def lines_of(response: httpx.Response) -> list[dict[str, Any]]:
    assert response.status_code == 200 and response.headers["content-type"] == "application/x-ndjson"
    assert response.text.endswith("}\n")
    return [json.loads(line) for line in response.text.splitlines()]


def text_of(answer: dict[str, Any]) -> str:
    return str(answer["message"]["content"] if "message" in answer else answer["response"])


def submitted(house: House) -> Submit:
    submit: Submit = house.backend.sent_of(Submit)[0]
    return submit


@pytest.fixture(scope="module")
def client() -> Iterator[ollama.Client]:
    with real_server(make_house()) as url:
        yield ollama.Client(host=url)


def test_the_official_client_chats(client: ollama.Client) -> None:
    answer = client.chat(model="fake", messages=MESSAGES, options={"num_predict": 5, "num_ctx": 4096}, keep_alive="5m")
    assert answer.message.role == "assistant" and answer.message.content == "Hello"
    assert answer.done and answer.done_reason == "length" and answer.model == "fake" and answer.created_at
    assert answer.eval_count == 5 and answer.prompt_eval_count == PROMPT_TOKENS
    assert answer.total_duration and answer.eval_duration and answer.prompt_eval_duration
    assert answer.total_duration >= answer.eval_duration + answer.prompt_eval_duration > 0
    parts = list(client.chat(model="fake:latest", messages=MESSAGES, options={"num_predict": 5}, stream=True, think=False))
    assert "".join(part.message.content or "" for part in parts) == "Hello"
    assert [part.done for part in parts] == [False] * (len(parts) - 1) + [True] and parts[-1].eval_count == 5


def test_the_official_client_generates(client: ollama.Client) -> None:
    answer = client.generate(model="fake", prompt="hi", system="be brief", options={"stop": [", w"], "temperature": 0.0})
    assert answer.response == "Hello, w" and answer.done_reason == "stop"  # the fake does not trim
    assert answer.prompt_eval_count == PROMPT_TOKENS + len("<system\nbe brief>\n")
    parts = list(client.generate(model="fake", prompt="hi", raw=True, stream=True, options={"num_predict": 4}))
    assert "".join(part.response for part in parts) == "Hell" and parts[-1].prompt_eval_count == 2
    assert client.generate(model="fake", keep_alive=-1).done_reason == "load"


def test_the_official_client_asks_about_models(client: ollama.Client) -> None:
    [listed] = client.list().models
    assert listed.model == "fake" and listed.digest and listed.modified_at
    [loaded] = client.ps().models
    assert loaded.model == "fake" and loaded.context_length == 256 and loaded.expires_at
    shown = client.show("fake")
    assert shown.capabilities == ["completion"] and shown.modelinfo and shown.modelinfo["general.context_length"] == 256
    with pytest.raises(ollama.ResponseError, match="not served here") as failure:
        client.show("other")
    assert failure.value.status_code == 404
    with pytest.raises(ollama.ResponseError, match="--is-embedding") as failure:
        client.embed("fake", "text")
    assert failure.value.status_code == 400


@pytest.mark.parametrize("path", [CHAT, GENERATE])
def test_streams_are_the_default_and_end_with_the_counts(path: str) -> None:
    lines = lines_of(post(path, options={"num_predict": 5}))
    assert "".join(map(text_of, lines)) == "Hello" and text_of(lines[-1]) == ""
    assert all(line["model"] == "fake" and line["created_at"].endswith("Z") for line in lines)
    assert all(line["done"] is False and "eval_count" not in line for line in lines[:-1])
    last = lines[-1]
    assert last["done"] is True and last["done_reason"] == "length"
    assert last["eval_count"] == 5 and last["prompt_eval_count"] == PROMPT_TOKENS
    assert all(isinstance(last[name], int) and last[name] >= 0 for name in DURATIONS)
    whole = post(path, options={"num_predict": 5}, stream=False).json()
    assert text_of(whole) == "Hello" and whole.keys() == last.keys()


def test_options_reach_the_sampler() -> None:
    house = make_house()
    options = {
        "temperature": 0.3, "top_k": 7, "top_p": 0.5, "min_p": 0.1, "seed": 11, "num_predict": 3, "stop": "zz",
        "repeat_penalty": 1.2, "presence_penalty": 0.4, "frequency_penalty": 0.6,
        "num_ctx": 1, "num_gpu": 5, "mirostat": 0, "typical_p": 1, "novelty": 1,
    }  # fmt: skip
    assert post(CHAT, house, options=options).status_code == 200
    params = submitted(house).params
    assert (params.temperature, params.top_k, params.top_p, params.min_p, params.seed) == (0.3, 7, 0.5, 0.1, 11)
    assert (params.max_new_tokens, params.stop, params.repetition_penalty) == (3, ("zz",), 1.2)
    assert (params.presence_penalty, params.frequency_penalty) == (0.4, 0.6)


@pytest.mark.parametrize(
    ("num_predict", "made"), [(-1, 256 - PROMPT_TOKENS), (-2, 256 - PROMPT_TOKENS), (9999, 256 - PROMPT_TOKENS), (0, 0)]
)
def test_the_number_of_tokens_gives_way_to_the_context(num_predict: int, made: int) -> None:
    answer = post(CHAT, options={"num_predict": num_predict, "top_k": 0}, stream=False).json()
    assert answer["eval_count"] == made and answer["done_reason"] == "length"


def test_what_is_raw_is_not_put_into_the_template() -> None:
    house = make_house()
    assert post(GENERATE, house, prompt="<|im_end|>", raw=True, options={"num_predict": 1}).status_code == 200
    assert list(unpack_ids(submitted(house).token_ids)) == [258]
    house = make_house()
    assert post(GENERATE, house, prompt="<|im_end|>", options={"num_predict": 1}).status_code == 200
    assert list(unpack_ids(submitted(house).token_ids)) == [257, *b"user\n<|im_end|>", 258, *b"\n", 257, *b"assistant\n"]


def test_a_call_without_a_prompt_loads_nothing_and_says_so() -> None:
    for path, body in ((CHAT, {"messages": []}), (GENERATE, {"prompt": ""})):
        answer = post(path, **body).json()
        assert answer["done"] is True and answer["done_reason"] == "load" and text_of(answer) == ""


REFUSED: list[tuple[str, dict[str, Any], str]] = [
    (CHAT, {"messages": 5}, "messages"),
    (CHAT, {"messages": [{"role": "x"}]}, "messages[0].role"),
    (CHAT, {"messages": [{"role": "function", "content": "x"}]}, "messages[0].role"),
    (CHAT, {"messages": [{"role": "user", "content": "x", "images": ["aa"]}]}, "messages[0].images"),
    (CHAT, {"messages": [{"role": "assistant", "tool_calls": [{}]}]}, "messages[0].tool_calls"),
    (CHAT, {"messages": [{"role": "user", "content": "x" * 1000}]}, "messages"),
    (CHAT, {"tools": [{"type": "function"}]}, "tools"),
    (CHAT, {"think": True}, "think"),
    (CHAT, {"format": "yaml"}, "format"),
    (CHAT, {"logprobs": True}, "logprobs"),
    (CHAT, {"options": {"temperature": -1}}, "options.temperature"),
    (CHAT, {"options": {"temperature": "x"}}, "options.temperature"),
    (CHAT, {"options": {"num_predict": -3}}, "options.num_predict"),
    (CHAT, {"options": {"top_p": 2}}, "options.top_p"),
    (CHAT, {"options": {"repeat_penalty": 0}}, "options.repeat_penalty"),
    (CHAT, {"options": {"stop": [""]}}, "options.stop"),
    (CHAT, {"options": {"mirostat": 2}}, "options.mirostat"),
    (CHAT, {"options": {"repeat_last_n": 64, "repeat_penalty": 1.1}}, "options.repeat_last_n"),
    (CHAT, {"options": 5}, "options"),
    (CHAT, {"stream": "yes"}, "stream"),
    (CHAT, {"keep_alive": []}, "keep_alive"),
    (GENERATE, {"prompt": 5}, "prompt"),
    (GENERATE, {"prompt": "x" * 255}, "prompt"),
    (GENERATE, {"suffix": "x"}, "suffix"),
    (GENERATE, {"template": "{{ .Prompt }}"}, "template"),
    (GENERATE, {"context": [1, 2]}, "context"),
    (GENERATE, {"images": ["aa"]}, "images"),
    (GENERATE, {"raw": True, "system": "x"}, "system"),
    ("/api/show", {"model": ""}, "model"),
]


@pytest.mark.parametrize(("path", "fields", "name"), REFUSED, ids=lambda value: str(value)[:60])
def test_what_cannot_be_honoured_is_a_400_that_names_the_field(path: str, fields: dict[str, Any], name: str) -> None:
    house = make_house()
    response = post(path, house, **fields)
    assert response.status_code == 400, response.text
    assert set(response.json()) == {"error"} and name in response.json()["error"], response.text
    assert response.headers["content-type"] == "application/json" and house.frontend.num_open == 0


def test_errors_of_every_origin_have_the_dialects_shape() -> None:
    for response, status in (
        (post(CHAT, make_house(is_ready=False)), 503),
        (post("/api/pull"), 404),
        (ask(make_house(), "GET", CHAT), 405),
        (post(CHAT, make_house(max_body_bytes=10)), 413),
        (ask(make_house(), "POST", CHAT, content=b"{"), 400),
        (post(CHAT, model="other"), 404),
        (post(CHAT, make_house(api_key="k")), 401),
    ):
        assert response.status_code == status and isinstance(response.json()["error"], str), response.text
    assert ask(make_house(), "GET", "/api/version").json()["version"]


@pytest.mark.parametrize("path", [CHAT, GENERATE])
def test_hanging_up_aborts(path: str) -> None:
    house = make_house(FakeBackend(step_s=0.02))
    with real_server(house) as url:
        for stream in (False, True):
            connection = send(url, path, {**BODIES[path], "stream": stream})
            assert wait_until(lambda: house.frontend.num_open == 1)
            connection.close()
            assert wait_until(lambda: house.frontend.num_open == 0)
    assert aborted(house) == [1, 2]


def test_a_death_in_the_middle_is_an_error_line() -> None:
    house = make_house(FakeBackend(step_s=0.02))
    with real_server(house) as url, httpx.stream("POST", f"{url}{CHAT}", json=BODIES[CHAT]) as response:
        lines = response.iter_lines()
        assert json.loads(next(lines))["done"] is False
        in_loop(house, lambda: house.frontend.fail_all(EngineFailed("the worker died; start the server again")))
        rest = [line for line in lines if line]
    assert "worker died" in json.loads(rest[-1])["error"]
