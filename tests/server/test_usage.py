"""Usage on every route that makes text, whole and streamed alike: cut by length, by a stop, by the model; and the word for it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import httpx
import pytest
from serverkit import FakeBackend, House, ask, client_of, make_house
from test_tool_calls import THINKING, THOUGHTS

SAID = "One, two, three."
PROMPT = "abcdef"
CACHED = 3
MESSAGES = [{"role": "user", "content": PROMPT}]


@dataclass(frozen=True)
class Told:
    """What a route tells of a call: its counts, and the words for its choices' ends."""

    prompt: int
    completion: int
    cached: int | None
    words: tuple[str, ...]


@dataclass(frozen=True)
class Route:
    """One route: its body, the name of its limit, how it ends, and how its answers are read."""

    path: str
    body: dict[str, Any]
    fields: Callable[[int | None, list[str]], dict[str, Any]]
    read: Callable[[list[dict[str, Any]]], Told]
    words: dict[str, str]
    is_chat: bool = True
    takes_n: bool = False


def openai_told(events: list[dict[str, Any]]) -> Told:
    """Choices' ends and the last usage, of a whole answer or of chunks."""
    ends = {
        choice["index"]: choice["finish_reason"] for event in events for choice in event["choices"] if choice["finish_reason"]
    }
    usage = next(event["usage"] for event in reversed(events) if event.get("usage"))
    assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]
    words = tuple(ends[index] for index in sorted(ends))
    return Told(usage["prompt_tokens"], usage["completion_tokens"], usage["prompt_tokens_details"]["cached_tokens"], words)


def responses_told(events: list[dict[str, Any]]) -> Told:
    response = events[-1].get("response", events[-1])
    usage = response["usage"]
    assert usage["total_tokens"] == usage["input_tokens"] + usage["output_tokens"]
    details = response["incomplete_details"]
    word = f"{response['status']}:{details['reason']}" if details else response["status"]
    return Told(usage["input_tokens"], usage["output_tokens"], usage["input_tokens_details"]["cached_tokens"], (word,))


def anthropic_told(events: list[dict[str, Any]]) -> Told:
    last = next(event for event in reversed(events) if "usage" in event)
    usage = last["usage"]
    word = last["stop_reason"] if "stop_reason" in last else last["delta"]["stop_reason"]
    cached = usage["cache_read_input_tokens"]
    return Told(usage["input_tokens"] + cached, usage["output_tokens"], cached, (word,))


def ollama_told(events: list[dict[str, Any]]) -> Told:
    last = events[-1]
    return Told(last["prompt_eval_count"], last["eval_count"], None, (last["done_reason"],))


def native_told(events: list[dict[str, Any]]) -> Told:
    meta = events[-1]["meta_info"]
    return Told(meta["prompt_tokens"], meta["completion_tokens"], meta["cached_tokens"], (meta["finish_reason"]["type"],))


OPENAI = {"length": "length", "stop": "stop", "end": "stop"}
USAGE = {"stream_options": {"include_usage": True}}
ROUTES = [
    Route("/v1/chat/completions", {"messages": MESSAGES, **USAGE},
          lambda limit, stop: {"max_tokens": limit, "stop": stop}, openai_told, OPENAI, takes_n=True),
    Route("/v1/completions", {"prompt": PROMPT, "add_special_tokens": False, **USAGE},
          lambda limit, stop: {"max_tokens": limit or 100, "stop": stop}, openai_told, OPENAI, is_chat=False, takes_n=True),
    Route("/v1/responses", {"input": MESSAGES}, lambda limit, stop: {"max_output_tokens": limit, "stop": stop}, responses_told,
          {"length": "incomplete:max_output_tokens", "stop": "completed", "end": "completed"}),
    Route("/v1/messages", {"messages": MESSAGES}, lambda limit, stop: {"max_tokens": limit or 100, "stop_sequences": stop},
          anthropic_told, {"length": "max_tokens", "stop": "stop_sequence", "end": "stop_sequence"}),
    Route("/api/chat", {"messages": MESSAGES}, lambda limit, stop: {"options": {"num_predict": limit or -1, "stop": stop}},
          ollama_told, OPENAI),
    Route("/api/generate", {"prompt": PROMPT}, lambda limit, stop: {"options": {"num_predict": limit or -1, "stop": stop}},
          ollama_told, OPENAI),
    Route("/generate", {"text": PROMPT}, lambda limit, stop: {"sampling_params": {"max_new_tokens": limit or 100, "stop": stop}},
          native_told, OPENAI, is_chat=False),
]  # fmt: skip


def route_of(path: str) -> Route:
    return next(route for route in ROUTES if route.path == path)


def events_of(response: httpx.Response) -> list[dict[str, Any]]:
    assert response.status_code == 200, response.text
    lines = [line.removeprefix("data: ") for line in response.text.split("\n") if line and not line.startswith("event:")]
    return [json.loads(line) for line in lines if line != "[DONE]"]


def tell(route: Route, end: str, stream: bool, house: House | None = None, **more: Any) -> Told:
    """One call that ends in that way: after 5 tokens, at a stop string, or when the model has said everything."""
    stops = {"length": [], "stop": ["two,"], "end": ["\0"]}[end]
    body = {**route.body, **route.fields(5 if end == "length" else None, stops), "stream": stream, **more}
    house = house or make_house(FakeBackend(SAID + "\0"))
    told = route.read(events_of(ask(house, "POST", route.path, json=body)))
    assert house.frontend.num_open == 0
    return told


COMPLETION = {"length": 5, "stop": len("One, two,"), "end": len(SAID) + 1}


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("end", ["length", "stop", "end"])
@pytest.mark.parametrize("route", ROUTES, ids=lambda route: str(route.path))
def test_usage_adds_up_and_the_end_has_its_word(route: Route, end: str, stream: bool) -> None:
    prompt = len(f"<user\n{PROMPT}>\n<assistant\n") if route.is_chat else len(PROMPT)
    cached = None if route.path.startswith("/api/") else CACHED
    assert tell(route, end, stream) == Told(prompt, COMPLETION[end], cached, (route.words[end],))


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("route", [route for route in ROUTES if route.takes_n], ids=lambda route: str(route.path))
def test_a_prompt_counts_once_however_many_samples(route: Route, stream: bool) -> None:
    once, thrice = tell(route, "end", stream), tell(route, "end", stream, n=3)
    assert thrice == Told(once.prompt, 3 * once.completion, once.cached, ("stop",) * 3)


@pytest.mark.parametrize("route", [route for route in ROUTES if route.is_chat], ids=lambda route: str(route.path))
def test_reasoning_is_part_of_the_completion(route: Route) -> None:
    text = THOUGHTS + SAID
    for stream in (False, True):
        house = make_house(FakeBackend(text + "\0"), template=THINKING, context_len=1024)
        assert tell(route, "end", stream, house).completion == len(text.encode()) + 1


def aborted(route: Route, stream: bool, num_tokens: int) -> list[dict[str, Any]]:
    """The events of a call that an operator ends after so many tokens."""

    async def run() -> httpx.Response:
        house = make_house(FakeBackend(SAID + "\0"))
        house.backend.is_paused = True
        async with client_of(house) as client:
            body = {**route.body, **route.fields(100, []), "stream": stream}
            call = asyncio.ensure_future(client.post(route.path, json=body))
            while not house.backend.runs:
                await asyncio.sleep(0)
            for _ in range(num_tokens):
                house.backend.step()
                await asyncio.sleep(0.01)
            assert (await client.post("/abort_request", json={"abort_all": True})).json()["num_aborted"] == 1
            assert house.frontend.num_open == 0 and house.backend.runs == {}
            return await call

    return events_of(asyncio.run(run()))


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
def test_an_aborted_generation_counts_what_was_emitted(stream: bool) -> None:
    assert native_told(aborted(route_of("/generate"), stream, 7)) == Told(len(PROMPT), 7, CACHED, ("abort",))


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
def test_an_aborted_stream_tells_its_usage_before_the_error(path: str) -> None:
    *_, last, error = aborted(route_of(path), True, 7)
    assert error["error"]["code"] == "aborted"
    assert last["choices"] == [] and last["usage"]["completion_tokens"] == 7
    assert last["usage"]["total_tokens"] == last["usage"]["prompt_tokens"] + 7


CHAT_PROMPT = len(f"<user\n{PROMPT}>\n<assistant\n")


def test_an_aborted_response_has_failed_and_tells_its_usage() -> None:
    *_, item, error, failed = aborted(route_of("/v1/responses"), True, 7)
    assert (item["type"], item["item"]["status"]) == ("response.output_item.done", "incomplete")
    assert (error["type"], error["code"]) == ("error", "aborted")
    assert failed["type"] == "response.failed" and failed["response"]["error"]["code"] == "server_error"
    assert responses_told([failed]) == Told(CHAT_PROMPT, 7, CACHED, ("failed",))
    assert failed["response"]["output"] == [item["item"]]
    assert [event["sequence_number"] for event in (item, error, failed)] == sorted(
        {item["sequence_number"] + n for n in range(3)}
    )


def test_an_aborted_message_tells_its_usage_before_the_error() -> None:
    *_, stop, delta, error = aborted(route_of("/v1/messages"), True, 7)
    assert stop == {"type": "content_block_stop", "index": 0}
    assert delta["delta"] == {"stop_reason": None, "stop_sequence": None}
    assert anthropic_told([delta]) == Told(CHAT_PROMPT, 7, CACHED, (None,))  # type: ignore[arg-type]
    assert error["type"] == "error" and "operator" in error["error"]["message"]


@pytest.mark.parametrize("path", ["/api/chat", "/api/generate"])
def test_an_aborted_stream_of_ollamas_tells_its_counts_with_the_error(path: str) -> None:
    *_, before, last = aborted(route_of(path), True, 7)
    assert before["done"] is False and last["done"] is True and "operator" in last["error"]
    assert "done_reason" not in last, "the dialect has no word for it"
    assert (last["prompt_eval_count"], last["eval_count"]) == (CHAT_PROMPT, 7)


def test_a_cancelled_response_tells_what_it_took() -> None:
    async def run() -> dict[str, Any]:
        house = make_house(FakeBackend(SAID + "\0"))
        house.backend.is_paused = True
        async with client_of(house) as client:
            body = {**route_of("/v1/responses").body, "background": True}
            response = (await client.post("/v1/responses", json=body)).json()
            for _ in range(4):
                house.backend.step()
            path = f"/v1/responses/{response['id']}"
            cancelled = (await client.post(f"{path}/cancel")).json()
            assert (await client.get(path)).json() == cancelled
            return dict(cancelled)

    assert responses_told([asyncio.run(run())]) == Told(CHAT_PROMPT, 4, CACHED, ("cancelled",))
