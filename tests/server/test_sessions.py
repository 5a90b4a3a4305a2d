"""Sessions as SGLang defines them: continue, splice, replace, drop; refusals; expiry; pins for the worker."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
from serverkit import SCRIPT, House, client_of, make_house

from sapwood.messages.types import Abort, Submit, Unpin, unpack_ids


class Talk:
    """One session of one house."""

    def __init__(self, house: House, client: httpx.AsyncClient, name: str = "s") -> None:
        self.house, self.client, self.name = house, client, name

    async def open(self, **more: Any) -> httpx.Response:
        return await self.client.post("/open_session", json={"capacity_of_str_len": 200, "session_id": self.name, **more})

    async def say(self, rid: str, ids: list[int], num_new: int = 3, after: str | None = None, **session: Any) -> httpx.Response:
        body = {
            "input_ids": ids,
            "rid": rid,
            "sampling_params": {"max_new_tokens": num_new},
            "session_params": {"id": self.name, "rid": after, **session},
        }
        return await self.client.post("/generate", json=body)

    @property
    def last_prompt(self) -> list[int]:
        return [int(token_id) for token_id in unpack_ids(self.house.backend.sent_of(Submit)[-1].token_ids)]


def talk(script: Any, **settings: Any) -> House:
    """Run `script(talk)` against a house."""
    house = make_house(**settings)

    async def run() -> None:
        async with client_of(house) as client:
            await script(Talk(house, client))

    asyncio.run(run())
    return house


SAID = list(SCRIPT[:3].encode())


def test_turns_append_splice_drop_and_begin_anew() -> None:
    async def script(talk: Talk) -> None:
        assert (await talk.open()).json() == "s"
        assert (await talk.say("a", [1, 2])).status_code == 200
        assert talk.last_prompt == [1, 2]
        await talk.say("b", [3], after="a")
        assert talk.last_prompt == [1, 2, *SAID, 3]
        await talk.say("c", [4], after="b", drop_previous_output=True)
        assert talk.last_prompt == [1, 2, *SAID, 3, 4]
        await talk.say("d", [5], after="b", offset=2)
        assert talk.last_prompt == [1, 2, 5]
        await talk.say("e", [6], after="b", offset=-1)
        assert talk.last_prompt == [1, 2, *SAID, 3, *SAID[:-1], 6]
        await talk.say("f", [7])
        assert talk.last_prompt == [7]
        await talk.say("g", [], after="a")
        assert talk.last_prompt == [1, 2, *SAID]

    house = talk(script)
    submits = house.backend.sent_of(Submit)
    assert {submit.pin for submit in submits} == {"s"} and all(submit.pin_s == 3600.0 for submit in submits)


def test_text_of_later_turns_gets_no_second_beginning() -> None:
    async def script(talk: Talk) -> None:
        await talk.open()
        await talk.say("a", [1, 2])
        body = {"text": "hi", "rid": "b", "sampling_params": {"max_new_tokens": 1}, "session_params": {"id": "s", "rid": "a"}}
        assert (await talk.client.post("/generate", json=body)).status_code == 200
        assert talk.last_prompt == [1, 2, *SAID, *b"hi"]

    talk(script)


def test_replacing_forgets_what_came_after() -> None:
    async def script(talk: Talk) -> None:
        await talk.open()
        for rid, after in (("a", None), ("b", "a"), ("c", "b")):
            await talk.say(rid, [1], after=after)
        assert (await talk.say("d", [2], after="a", replace=True)).status_code == 200
        assert (await talk.say("e", [3], after="c")).status_code == 400
        assert (await talk.say("f", [3], after="d")).status_code == 200
        assert (await talk.say("g", [4], replace=True)).status_code == 200
        assert (await talk.say("h", [3], after="a")).status_code == 400
        assert (await talk.say("i", [3], after="g")).status_code == 200

    talk(script)


def test_replacing_a_turn_that_runs_ends_it() -> None:
    async def script(talk: Talk) -> None:
        await talk.open()
        running = asyncio.ensure_future(talk.say("a", [1], num_new=190))
        while not talk.house.backend.runs:
            await asyncio.sleep(0.001)
        talk.house.backend.is_paused = True
        refused = await talk.say("b", [2], after="a")
        assert refused.status_code == 400 and "has not finished" in refused.text
        replacing = asyncio.ensure_future(talk.say("c", [2], after="a", replace=True, drop_previous_output=True))
        await running
        talk.house.backend.is_paused = False
        assert (await replacing).status_code == 200
        assert talk.last_prompt == [1, 2]

    assert talk(script).backend.sent_of(Abort)


def test_what_cannot_be_is_refused() -> None:
    async def script(talk: Talk) -> None:
        assert (await talk.say("a", [1])).status_code == 400  # not open
        await talk.open()
        assert (await talk.open()).status_code == 400  # open already
        assert (await talk.client.post("/open_session", json={})).status_code == 400
        assert (await talk.open(streaming=True)).status_code == 400
        assert (await talk.say("a", [1], after="nobody")).status_code == 400
        assert (await talk.say("a", [])).status_code == 400
        assert (await talk.say("a", [1])).status_code == 200
        assert (await talk.say("b", [1], after="a", offset=5)).status_code == 400
        assert (await talk.say("b", [1] * 199, after="a")).status_code == 400  # more than the capacity
        batch = {"input_ids": [[1], [2]], "session_params": {"id": "s"}}
        assert (await talk.client.post("/generate", json=batch)).status_code == 400
        samples = {"input_ids": [1], "sampling_params": {"n": 2}, "session_params": {"id": "s"}}
        assert (await talk.client.post("/generate", json=samples)).status_code == 400
        assert (await talk.client.post("/close_session", json={"session_id": "other"})).status_code == 400

    talk(script)


def test_closing_and_expiry_unpin() -> None:
    async def script(talk: Talk) -> None:
        await talk.open(timeout=0.05)
        await talk.say("a", [1])
        await asyncio.sleep(0.1)
        assert (await talk.say("b", [1], after="a")).status_code == 400
        assert (await talk.open()).status_code == 200
        assert (await talk.say("a", [1])).status_code == 200
        assert (await talk.client.post("/close_session", json={"session_id": "s"})).status_code == 200
        assert (await talk.say("b", [1], after="a")).status_code == 400

    assert talk(script).backend.sent_of(Unpin) == [Unpin(["s"]), Unpin(["s"])]
