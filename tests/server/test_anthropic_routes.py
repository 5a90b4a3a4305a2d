"""The Anthropic dialect: through the official client, and its events and errors on the wire."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import anthropic
import httpx
import pytest
from serverkit import FakeBackend, House, ask, make_house, real_server, wait_until
from test_disconnects import aborted, in_loop, send

from sapwood.errors import EngineFailed
from sapwood.messages.types import Submit, unpack_ids

PATH = "/v1/messages"
BODY: dict[str, Any] = {"model": "fake", "max_tokens": 5, "messages": [{"role": "user", "content": "hi"}]}
PROMPT_TOKENS = len("<user\nhi>\n<assistant\n")


def post(house: House | None = None, path: str = PATH, **fields: Any) -> httpx.Response:
    body = {name: value for name, value in {**BODY, **fields}.items() if value is not ...}
    return ask(house or make_house(), "POST", path, json=body)


def events_of(response: httpx.Response) -> list[dict[str, Any]]:
    assert response.status_code == 200 and response.headers["content-type"].startswith("text/event-stream")
    found = []
    for block in response.text.removesuffix("\n\n").split("\n\n"):
        name, data = block.split("\n")
        found.append(json.loads(data.removeprefix("data: ")))
        assert name == f"event: {found[-1]['type']}"
    return found


def prompt_of(house: House) -> list[int]:
    return list(unpack_ids(house.backend.sent_of(Submit)[0].token_ids))


@pytest.fixture(scope="module")
def client() -> Iterator[anthropic.Anthropic]:
    with real_server(make_house(api_key="secret")) as url:
        yield anthropic.Anthropic(base_url=url, api_key="secret", max_retries=0)


def test_the_official_client_gets_a_message(client: anthropic.Anthropic) -> None:
    sampling = {"temperature": 0.5, "top_p": 0.9, "top_k": 3}
    message = client.messages.create(**BODY, system="be brief", metadata={"user_id": "u"}, extra_body=sampling)
    assert message.type == "message" and message.role == "assistant" and message.model == "fake" and message.id.startswith("msg_")
    assert [block.to_dict() for block in message.content] == [{"type": "text", "text": "Hello"}]
    assert message.stop_reason == "max_tokens" and message.stop_sequence is None
    usage = message.usage
    assert usage.output_tokens == 5 and usage.cache_read_input_tokens == 3 and usage.cache_creation_input_tokens == 0
    assert usage.input_tokens + 3 == PROMPT_TOKENS + len("<system\nbe brief>\n")


def test_the_official_client_streams(client: anthropic.Anthropic) -> None:
    with client.messages.stream(**{**BODY, "max_tokens": 8}) as stream:
        text = "".join(stream.text_stream)
        final = stream.get_final_message()
    assert text == "".join(block.text for block in final.content if block.type == "text") == "Hello, w"
    assert final.stop_reason == "max_tokens" and final.usage.output_tokens == 8


def test_the_official_client_counts_and_understands_errors(client: anthropic.Anthropic) -> None:
    counted = client.messages.count_tokens(model="fake", messages=BODY["messages"], system=[{"type": "text", "text": "x"}])
    assert counted.input_tokens == PROMPT_TOKENS + len("<system\nx>\n")
    with pytest.raises(anthropic.NotFoundError, match="not served here"):
        client.messages.create(**{**BODY, "model": "claude"})
    with pytest.raises(anthropic.BadRequestError, match="temperature"):
        client.messages.create(**BODY, extra_body={"temperature": -1.0})
    with pytest.raises(anthropic.AuthenticationError, match="x-api-key"):
        client.with_options(api_key="wrong").messages.create(**BODY)


def test_events_come_in_their_order() -> None:
    events = events_of(post(stream=True))
    kinds = [event["type"] for event in events]
    assert kinds[:2] == ["message_start", "content_block_start"]
    assert kinds[-3:] == ["content_block_stop", "message_delta", "message_stop"]
    assert set(kinds[2:-3]) == {"content_block_delta"}
    assert "".join(event["delta"]["text"] for event in events[2:-3]) == "Hello"
    start = events[0]["message"]
    assert start["content"] == [] and start["stop_reason"] is None and start["role"] == "assistant"
    assert start["usage"]["cache_read_input_tokens"] == 3 and start["usage"]["input_tokens"] == PROMPT_TOKENS - 3
    assert events[1] == {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}}
    assert events[-2]["delta"] == {"stop_reason": "max_tokens", "stop_sequence": None}
    assert events[-2]["usage"]["output_tokens"] == 5


def test_the_reasons_to_stop() -> None:
    answer = post(max_tokens=50, stop_sequences=["zz", ", w"]).json()
    assert answer["stop_reason"] == "stop_sequence" and answer["stop_sequence"] == ", w"
    events = events_of(post(max_tokens=50, stop_sequences=[", w"], stream=True))
    assert events[-2]["delta"] == {"stop_reason": "stop_sequence", "stop_sequence": ", w"}


def test_turns_become_the_models_prompt() -> None:
    house = make_house()
    turns = [
        {"role": "user", "content": [{"type": "text", "text": "<|im_end|>", "cache_control": {"type": "ephemeral"}}]},
        {"role": "user", "content": "b"},
        {"role": "assistant", "content": "so"},
    ]
    assert post(house, messages=turns, system=[{"type": "text", "text": "s"}], max_tokens=1).status_code == 200
    assert prompt_of(house) == [
        257, *b"system\ns", 258, *b"\n", 257, *b"user\n<|im_end|>\nb", 258, *b"\n", 257, *b"assistant\nso"
    ]  # fmt: skip


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"max_tokens": ...}, "max_tokens"),
    ({"max_tokens": 0}, "max_tokens"),
    ({"messages": ...}, "messages"),
    ({"messages": []}, "messages"),
    ({"messages": [{"role": "system", "content": "x"}]}, "messages[0].role"),
    ({"messages": [{"role": "user"}]}, "content"),
    ({"messages": [{"role": "user", "content": [{"type": "image", "source": {}}]}]}, "messages[0].content[0].type"),
    ({"messages": [{"role": "user", "content": [{"type": "text"}]}]}, "messages[0].content[0].text"),
    ({"messages": [{"role": "user", "content": "x" * 1000}]}, "messages"),
    ({"system": [{"type": "image"}]}, "system[0].type"),
    ({"system": 5}, "system"),
    ({"tools": [{"name": "f"}]}, "tools"),
    ({"tool_choice": {"type": "any"}}, "tool_choice"),
    ({"output_config": {"format": {"type": "xml"}}}, "output_config.format"),
    ({"stop_sequences": "x"}, "stop_sequences"),
    ({"stop_sequences": [""]}, "stop_sequences"),
    ({"top_k": -5}, "top_k"),
    ({"top_p": 2}, "top_p"),
    ({"stream": "yes"}, "stream"),
    ({"metadata": 5}, "metadata"),
]


@pytest.mark.parametrize(("fields", "name"), REFUSED, ids=lambda value: str(value)[:60])
@pytest.mark.parametrize("stream", [False, True])
def test_what_cannot_be_honoured_is_a_400_that_names_the_field(fields: dict[str, Any], name: str, stream: bool) -> None:
    house = make_house()
    response = post(house, **{"stream": stream, **fields})
    assert response.status_code == 400, response.text
    body = response.json()
    assert body["type"] == "error" and set(body) == {"type", "error"} and set(body["error"]) == {"type", "message"}
    assert body["error"]["type"] == "invalid_request_error" and name in body["error"]["message"], body
    assert house.frontend.num_open == 0


def test_options_that_are_off_are_accepted() -> None:
    assert post(tools=[], tool_choice={"type": "none"}, thinking={"type": "disabled"}, top_k=0, novelty=1).status_code == 200


def test_errors_of_every_origin_have_the_dialects_shape() -> None:
    house = make_house(is_ready=False)
    assert post(house).status_code == 503 and post(house).json()["error"]["type"] == "overloaded_error"
    assert post(path="/v1/messages/batches").json()["error"]["type"] == "not_found_error"
    assert ask(make_house(), "GET", PATH).json()["error"]["type"] == "invalid_request_error"
    assert post(make_house(max_body_bytes=10)).json()["error"]["type"] == "request_too_large"
    assert ask(make_house(), "POST", PATH, content=b"{").json()["type"] == "error"
    locked = make_house(api_key="k")
    assert post(locked).status_code == 401 and post(locked).json()["error"]["type"] == "authentication_error"
    assert ask(locked, "POST", PATH, json=BODY, headers={"x-api-key": "k"}).status_code == 200


def test_hanging_up_aborts() -> None:
    house = make_house(FakeBackend(step_s=0.02))
    with real_server(house) as url:
        for stream in (False, True):
            connection = send(url, PATH, {**BODY, "max_tokens": 200, "stream": stream})
            assert wait_until(lambda: house.frontend.num_open == 1)
            connection.close()
            assert wait_until(lambda: house.frontend.num_open == 0)
    assert aborted(house) == [1, 2]


def test_a_death_in_the_middle_is_an_error_event() -> None:
    house = make_house(FakeBackend(step_s=0.02))
    body = {**BODY, "max_tokens": 200, "stream": True}
    with real_server(house) as url, httpx.stream("POST", f"{url}{PATH}", json=body) as response:
        lines = response.iter_lines()
        assert next(lines) == "event: message_start"
        in_loop(house, lambda: house.frontend.fail_all(EngineFailed("the worker died; start the server again")))
        rest = [line for line in lines if line]
    assert rest[-2] == "event: error" and json.loads(rest[-1][6:])["error"]["type"] == "api_error"
