"""OpenAI's responses: whole, streamed, in the background, gone on from, stored within bounds; through the official client."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterator
from typing import Any

import httpx
import openai
import pytest
from serverkit import FakeBackend, House, ask, client_of, make_house, real_server
from test_tool_calls import CALLS, EXPECTED, PARAMETERS, THINKING, THOUGHTS, prompt_of, speaking

from sapwood.messages.types import Abort
from sapwood.server.openai.response_store import ResponseNotFound, ResponseStore, StoredResponse

PATH = "/v1/responses"
TOOLS: list[Any] = [
    {"type": "function", "name": "f", "parameters": PARAMETERS, "strict": False},
    {"type": "function", "name": "g"},
]
STOP: dict[str, Any] = {"stop": ["\0"]}


def create(house: House, **fields: Any) -> httpx.Response:
    return ask(house, "POST", PATH, json={"input": "hi", **STOP, **fields})


@pytest.fixture(scope="module")
def client() -> Iterator[openai.OpenAI]:
    with real_server(speaking(THOUGHTS + CALLS, THINKING)) as url:
        yield openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)


def without_ids(items: Any) -> list[dict[str, Any]]:
    """Items without what is drawn, and what the client adds when it streams."""
    plain = [{k: v for k, v in item.to_dict().items() if k not in ("id", "call_id", "parsed_arguments")} for item in items]
    for item in plain:
        for part in item.get("content", ()):
            part.pop("parsed", None)
    return plain


def test_the_official_client_gets_a_response(client: openai.OpenAI) -> None:
    response = client.responses.create(model="fake", input="hi", tools=TOOLS, extra_body=STOP, metadata={"a": "b"})
    assert response.status == "completed" and response.id.startswith("resp_") and response.output_text == "Let me see."
    assert [item.type for item in response.output] == ["reasoning", "message", "function_call", "function_call"]
    calls = [item for item in response.output if item.type == "function_call"]
    assert [(call.name, json.loads(call.arguments)) for call in calls] == EXPECTED
    assert response.usage and response.usage.output_tokens == len((THOUGHTS + CALLS).encode()) + 1
    assert response.usage.output_tokens_details.reasoning_tokens == len(THOUGHTS.rstrip().encode())
    assert response.usage.total_tokens == response.usage.input_tokens + response.usage.output_tokens
    kept = client.responses.retrieve(response.id)
    assert kept.to_dict() == response.to_dict() and kept.metadata == {"a": "b"}


def test_the_official_client_streams_the_same(client: openai.OpenAI) -> None:
    whole = client.responses.create(model="fake", input="hi", tools=TOOLS, extra_body=STOP)
    with client.responses.stream(model="fake", input="hi", tools=TOOLS, extra_body=STOP) as stream:
        events = list(stream)
        final = stream.get_final_response()
    assert without_ids(final.output) == without_ids(whole.output)
    assert final.usage == whole.usage
    assert events[0].type == "response.created" and events[-1].type == "response.completed"


def test_events_are_numbered_and_join() -> None:
    response = create(speaking(THOUGHTS + CALLS, THINKING), stream=True, tools=TOOLS)
    blocks = [block.split("\n") for block in response.text.removesuffix("\n\n").split("\n\n")]
    events = [json.loads(data.removeprefix("data: ")) for _, data in blocks]
    assert [name for name, _ in blocks] == [f"event: {event['type']}" for event in events]
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    kinds = [event["type"] for event in events]
    assert kinds[:3] == ["response.created", "response.in_progress", "response.output_item.added"]
    for index, item in enumerate(events[-1]["response"]["output"]):
        own = [event for event in events if event.get("output_index") == index]
        assert own[0]["type"] == "response.output_item.added" and own[-1] == {**own[-1], "item": item}
        joined = "".join(event["delta"] for event in own if event["type"].endswith(".delta"))
        assert joined == (item["arguments"] if item["type"] == "function_call" else item["content"][0]["text"])
    assert events[-1]["response"]["status"] == "completed"


def test_a_response_cut_by_the_length_is_incomplete() -> None:
    answer = create(speaking("Hello"), max_output_tokens=3).json()
    assert answer["status"] == "incomplete" and answer["incomplete_details"] == {"reason": "max_output_tokens"}
    assert answer["output"][0]["content"][0]["text"] == "Hel" and answer["output"][0]["status"] == "incomplete"


def test_going_on_from_a_response(client: openai.OpenAI) -> None:
    house = speaking(CALLS)
    with real_server(house) as url:
        client = openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)
        first = client.responses.create(model="fake", input="What now?", instructions="be brief", tools=TOOLS, extra_body=STOP)
        results: list[Any] = [
            {"type": "function_call_output", "call_id": item.call_id, "output": f"result {index}"}
            for index, item in enumerate(item for item in first.output if item.type == "function_call")
        ]
        again = client.responses.create(model="fake", input=results, previous_response_id=first.id, tools=TOOLS, extra_body=STOP)
        prompt = prompt_of(house)
        assert "be brief" not in prompt and "What now?" in prompt and "Let me see." in prompt
        assert prompt.count('<tool_call>\n{"name"') == 3 and prompt.index("result 0") < prompt.index("result 1")
        assert again.previous_response_id == first.id
        listed = client.responses.input_items.list(again.id, order="asc", limit=3)
        assert [item.type for item in listed.data] == ["message", "message", "function_call"] and listed.has_more
        assert client.responses.input_items.list(again.id).data[0].type == "function_call_output"
        counted = client.responses.input_tokens.count(model="fake", input=results, previous_response_id=first.id, tools=TOOLS)
        assert again.usage is not None and counted.input_tokens == again.usage.input_tokens
        client.responses.delete(first.id)
        with pytest.raises(openai.NotFoundError):
            client.responses.create(model="fake", input="x", previous_response_id=first.id)


def test_in_the_background() -> None:
    house = make_house(FakeBackend("Hello\0", step_s=0.02))
    with real_server(house) as url:
        client = openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)
        response = client.responses.create(model="fake", input="hi", background=True, extra_body=STOP)
        assert response.status == "queued"
        for _ in range(200):
            response = client.responses.retrieve(response.id)
            if response.status == "completed":
                break
            time.sleep(0.02)
        assert response.output_text == "Hello"
        long = client.responses.create(model="fake", input="hi", background=True)
        assert client.responses.cancel(long.id).status == "cancelled"
        assert client.responses.retrieve(long.id).status == "cancelled"
        assert house.backend.sent_of(Abort)
        plain = client.responses.create(model="fake", input="hi", extra_body=STOP)
        with pytest.raises(openai.BadRequestError, match="background"):
            client.responses.cancel(plain.id)


def test_a_background_response_that_fails_keeps_what_there_was() -> None:
    async def run() -> dict[str, Any]:
        house = make_house(FakeBackend("Hello"))
        house.backend.is_paused = True
        async with client_of(house) as client:
            id = (await client.post(PATH, json={"input": "hi", "background": True})).json()["id"]
            for _ in range(4):
                house.backend.step()
            house.frontend.abort("")
            for _ in range(10):
                await asyncio.sleep(0.01)
            return dict((await client.get(f"{PATH}/{id}")).json())

    kept = asyncio.run(run())
    assert kept["status"] == "failed" and kept["error"]["message"] and kept["usage"]["output_tokens"] == 4
    assert [(item["status"], item["content"][0]["text"]) for item in kept["output"]] == [("incomplete", "Hell")]


def test_what_is_not_to_be_stored_is_not() -> None:
    house = speaking("Hello")
    answer = create(house, store=False).json()
    assert ask(house, "GET", f"{PATH}/{answer['id']}").status_code == 404


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"input": ""}, "input"),
    ({"input": []}, "input"),
    ({"input": None}, "input"),
    ({"input": [{"type": "message", "content": "x"}]}, "input[0].role"),
    ({"input": [{"type": "web_search_call", "id": "x"}]}, "input[0].type"),
    ({"input": [{"type": "function_call_output", "output": "x"}]}, "input[0].call_id"),
    ({"input": [{"type": "function_call_output", "call_id": "x", "output": 5}]}, "input[0].output"),
    ({"input": [{"type": "function_call", "name": "x"}]}, "input[0]"),
    ({"input": "x" * 50_000}, "input"),
    ({"tools": [{"type": "web_search"}]}, "tools[0].type"),
    ({"tool_choice": {"type": "function", "name": "h"}}, "tool_choice"),
    ({"text": {"format": {"type": "novel"}}}, "text.format"),
    ({"max_output_tokens": 0}, "max_output_tokens"),
    ({"max_output_tokens": 10_000}, "max_output_tokens"),
    ({"conversation": "x"}, "conversation"),
    ({"background": True, "stream": True}, "background"),
    ({"reasoning": {"effort": "extreme"}}, "reasoning.effort"),
]


@pytest.mark.parametrize(("fields", "param"), REFUSED, ids=lambda value: str(value)[:60])
@pytest.mark.parametrize("stream", [False, True])
def test_what_cannot_be_honoured_is_named(fields: dict[str, Any], param: str, stream: bool) -> None:
    house = speaking("x")
    response = create(house, **{"stream": stream, **fields})
    assert response.status_code == 400, response.text
    assert response.json()["error"]["param"] == param
    assert house.frontend.num_open == 0


@pytest.mark.parametrize("query", ["limit=0", "limit=x", "order=up", "after=nothing", "limit=99999999999"])
def test_wrong_pages_are_refused(query: str) -> None:
    house = speaking("x")
    id = create(house).json()["id"]
    assert ask(house, "GET", f"{PATH}/{id}/input_items?{query}").status_code == 400
    assert ask(house, "GET", f"{PATH}/resp_none").json()["error"]["code"] == "response_not_found"


def stored(id: str, size: int = 0, status: str = "completed") -> StoredResponse:
    return StoredResponse({"id": id, "status": status, "output": [], "background": False, "text": "x" * size}, [], [])


def test_the_store_is_bounded_and_forgets_what_was_used_least_recently() -> None:
    store = ResponseStore(max_count=2, max_bytes=10_000)
    for id in "abc":
        store.put(stored(id))
        store.get(id)
        if len(store) > 1:
            store.get("a")
    assert len(store) == 2 and store.get("a") and store.get("c")
    with pytest.raises(ResponseNotFound, match="'b'"):
        store.get("b")
    store.put(stored("big", 9_900))
    assert len(store) == 1
    running = ResponseStore(max_count=1)
    running.put(stored("r", status="queued"))
    running.put(stored("s"))
    assert len(running) == 2, "what is being made is kept"
    running.put(stored("r"))
    running.put(stored("t"))
    assert len(running) == 1
