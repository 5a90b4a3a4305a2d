"""`truncation: "auto"`: the oldest turns of a response's conversation go until the rest fits; nothing is cut in the middle."""

from __future__ import annotations

import tracemalloc
from typing import Any

import httpx
import pytest
from serverkit import CONTEXT_LEN, House, ask, make_house
from test_tool_calls import prompt_of

from sapwood.server.openai import truncation
from sapwood.server.openai.schema import Message
from sapwood.server.openai.truncation import from_turn, turns

LAST = {"role": "user", "content": "the last question"}


def turn(number: int) -> list[dict[str, Any]]:
    return [{"role": "user", "content": f"question {number}"}, {"role": "assistant", "content": f"answer {number}"}]


def create(house: House, path: str = "/v1/responses", **fields: Any) -> httpx.Response:
    return ask(house, "POST", path, json={"truncation": "auto", **fields})


def long_talk() -> list[dict[str, Any]]:
    return [*(item for number in range(30) for item in turn(number)), LAST]


def test_the_oldest_turns_go_and_instructions_stay() -> None:
    house = make_house()
    items = [{"role": "developer", "content": "Be kind."}, *long_talk()]
    response = create(house, input=items, instructions="Be brief.", max_output_tokens=40)
    assert response.status_code == 200, response.text
    prompt, count = prompt_of(house), response.json()["usage"]["input_tokens"]
    assert "Be brief." in prompt and "Be kind." in prompt and "the last question" in prompt
    assert "question 0" not in prompt and "answer 29" in prompt
    assert count <= CONTEXT_LEN - 40 < count + 100  # one more turn would not have fitted
    assert response.json()["truncation"] == "auto"
    counted = create(house, "/v1/responses/input_tokens", input=items, instructions="Be brief.", max_output_tokens=40)
    assert counted.json()["input_tokens"] == count


def test_what_fits_is_left_alone() -> None:
    house = make_house()
    response = create(house, input=[*turn(1), LAST], max_output_tokens=8)
    assert response.status_code == 200 and "question 1" in prompt_of(house)


def test_without_it_and_where_one_turn_is_too_long_the_prompt_is_refused() -> None:
    house = make_house()
    for fields in ({"input": long_talk(), "truncation": "disabled"}, {"input": "x" * 300}, {"input": "x" * 300_000}):
        response = create(house, **fields)
        assert response.status_code == 400 and response.json()["error"]["code"] == "context_length_exceeded", response.text
    assert create(house, input="still there", max_output_tokens=4).status_code == 200


def test_more_characters_and_messages_than_any_prompt_has_are_no_obstacle() -> None:
    house = make_house()
    huge = [{"role": "user", "content": "y" * 300_000}, {"role": "assistant", "content": "z"}]
    assert create(house, input=[*huge, *long_talk() * 10], max_output_tokens=8).status_code == 200
    assert "yy" not in prompt_of(house) and "the last question" in prompt_of(house)


def test_very_many_turns_take_no_memory_of_their_square() -> None:
    house = make_house(max_body_bytes=16 << 20)
    talk = [{"role": "user", "content": "x"} for _ in range(20_000)]
    tracemalloc.start()
    try:
        response = create(house, input=[*talk, LAST], max_output_tokens=8)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert response.status_code == 200 and "the last question" in prompt_of(house)
    assert peak < 150 << 20


def test_the_prompt_that_fits_is_rendered_once(monkeypatch: pytest.MonkeyPatch) -> None:
    rendered: list[int] = []
    real = truncation.chat_prompt

    async def count(context: Any, messages: list[Message], options: Any) -> Any:
        rendered.append(len(messages))
        return await real(context, messages, options)

    monkeypatch.setattr(truncation, "chat_prompt", count)
    assert create(make_house(), input=[*turn(1), LAST], max_output_tokens=8).status_code == 200
    assert rendered == [3]


def test_an_answer_of_a_tool_never_stands_without_its_call() -> None:
    talk = [Message(role="system", content="s")]
    for number in range(3):
        talk.append(Message(role="user", content=str(number)))
        talk.append(Message(role="assistant", tool_calls=[{"id": str(number)}]))
        talk.append(Message(role="tool", tool_call_id=str(number), content="found"))
    found = [from_turn(talk, start) for start in turns(talk)]
    assert [len(messages) for messages in found] == [10, 7, 4]
    for messages in found:
        assert [message.role for message in messages[:2]] == ["system", "user"]
        called = {call["id"] for message in messages for call in message.tool_calls or []}
        assert {message.tool_call_id for message in messages if message.role == "tool"} == called
