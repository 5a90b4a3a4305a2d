"""A call of very many prompts is accepted as a whole or not at all, and others get on while it is read, begun and answered."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import httpx
import pytest
from serverkit import FakeBackend, House, client_of, make_house

from sapwood.errors import EngineFailed
from sapwood.messages.types import Submit
from sapwood.server.backend import Pieces
from sapwood.server.gradual import SLICE

COUNT = 10 * SLICE
TEXTS: dict[str, Any] = {"text": ["a"] * COUNT, "sampling_params": {"max_new_tokens": 1}}
IDS: dict[str, Any] = {"input_ids": [[7]] * COUNT, "sampling_params": {"max_new_tokens": 1}}


class HastyBackend(FakeBackend):
    """Lets nobody else run while it tokenizes."""

    async def tokenize(self, pieces: Pieces, add_special: bool) -> list[int]:
        return self.tokenizer.encode_pieces(pieces, add_special)


def house_of(max_open: int = 2 * COUNT) -> House:
    house = make_house(HastyBackend(), max_queued_requests=max_open)
    house.backend.is_paused = True
    return house


def call(house: House, path: str, body: dict[str, Any], on_turn: Callable[[int], None]) -> tuple[httpx.Response, list[int]]:
    """The answer, and how many requests were open at each turn of somebody else, up to the moment when all were."""

    async def run() -> tuple[httpx.Response, list[int]]:
        async with client_of(house) as client:
            asking, seen = asyncio.ensure_future(client.post(path, json=body)), list[int]()
            while not asking.done():
                await asyncio.sleep(0)
                if house.backend.is_paused:
                    seen.append(house.frontend.num_open)
                    on_turn(house.frontend.num_open)
                house.backend.is_paused = house.frontend.num_open < COUNT and house.backend.is_paused
            return await asking, seen

    return asyncio.run(run())


@pytest.mark.parametrize(
    ("path", "body", "num_walks"),
    [("/generate", TEXTS, 4), ("/generate", IDS, 3), ("/v1/completions", {"prompt": ["a"] * COUNT, "max_tokens": 1}, 2)],
    ids=["texts", "ids", "completions"],
)
def test_others_get_their_turns(path: str, body: dict[str, Any], num_walks: int) -> None:
    """`num_walks`: how often all prompts are gone through before the first one is opened."""
    house = house_of()
    answer, seen = call(house, path, body, lambda num_open: None)
    assert answer.status_code == 200
    replies = answer.json() if path == "/generate" else answer.json()["choices"]
    assert len(replies) == COUNT
    assert set(range(SLICE, COUNT, SLICE)) <= set(seen), "somebody ran between any two slices that were opened"
    assert seen.count(0) >= num_walks * (COUNT // SLICE - 1), "and while they were read and checked"


def test_others_get_their_turns_while_it_is_answered() -> None:
    house = house_of()

    async def run() -> int:
        async with client_of(house) as client:
            asking, num_turns = asyncio.ensure_future(client.post("/generate", json=IDS)), 0
            while house.frontend.num_open < COUNT:
                await asyncio.sleep(0)
            house.backend.is_paused = False
            while house.frontend.num_open:
                await asyncio.sleep(0)
            while not asking.done():
                await asyncio.sleep(0)
                num_turns += 1
            return num_turns

    assert asyncio.run(run()) >= COUNT // SLICE - 1


def test_a_mistake_in_the_last_prompt_stops_the_first() -> None:
    house = house_of()
    body = {**IDS, "input_ids": [*IDS["input_ids"][1:], [10**6]]}
    answer, seen = call(house, "/generate", body, lambda num_open: None)
    assert answer.status_code == 400 and answer.json()["error"]["param"] == "input_ids"
    assert set(seen) == {0} and house.backend.sent_of(Submit) == []


def test_a_batch_that_asks_for_no_samples_is_a_mistake() -> None:
    answer, _ = call(house_of(), "/generate", {**IDS, "sampling_params": {"n": 0}}, lambda num_open: None)
    assert answer.status_code == 400 and answer.json()["error"]["param"] == "n"


def test_where_the_room_goes_meanwhile_nothing_is_left_behind() -> None:
    house = house_of(COUNT + 10)

    def crowd(num_open: int) -> None:
        if num_open == 3 * SLICE:
            house.frontend.limits = replace(house.frontend.limits, max_open_requests=4 * SLICE)

    answer, _ = call(house, "/generate", IDS, crowd)
    assert answer.status_code == 429 and house.frontend.num_open == 0


def test_an_engine_that_fails_meanwhile_fails_the_call() -> None:
    house = house_of()

    def fail(num_open: int) -> None:
        if num_open == 3 * SLICE:
            house.frontend.fail_all(EngineFailed("it is gone"))

    answer, _ = call(house, "/generate", IDS, fail)
    assert answer.status_code == 503 and house.frontend.num_open == 0
