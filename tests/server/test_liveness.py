"""A process that lives but hangs: the server is unhealthy until it answers, refuses new requests, and ends nothing."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from serverkit import client_of, make_house

from sapwood.errors import Overloaded
from sapwood.messages.types import Answer
from sapwood.server.decoding import PROBE, ProcessDecoder
from sapwood.server.limits import ServingState
from sapwood.server.liveness import Liveness

INTERVAL_S, TIMEOUT_S = 0.01, 0.05


async def eventually(condition: Any) -> None:
    async with asyncio.timeout(5):
        while not condition():
            await asyncio.sleep(0.005)


def test_silence_is_noticed_and_so_is_its_end(caplog: pytest.LogCaptureFixture) -> None:
    changes: list[bool] = []
    gate = asyncio.Event()

    async def hang() -> None:
        await gate.wait()

    async def fine() -> None:
        pass

    async def run() -> None:
        gate_holder = asyncio.ensure_future(
            Liveness({"worker 0": hang, "tokenizer 0": fine}, changes.append, INTERVAL_S, TIMEOUT_S).run()
        )
        await eventually(lambda: changes == [True])
        await asyncio.sleep(3 * TIMEOUT_S)
        assert changes == [True]  # told once
        gate.set()
        await eventually(lambda: changes == [True, False])
        gate_holder.cancel()

    asyncio.run(run())
    assert "worker 0 process has not answered" in caplog.text and "tokenizer" not in caplog.text


def test_a_silence_that_lasts_is_told_again() -> None:
    silences: list[str] = []
    gate = asyncio.Event()

    async def run() -> None:
        watching = asyncio.ensure_future(
            Liveness({"worker 0": gate.wait}, lambda silent: None, INTERVAL_S, TIMEOUT_S, silences.append).run()
        )
        await eventually(lambda: len(silences) == 3)
        gate.set()
        await asyncio.sleep(3 * TIMEOUT_S)
        watching.cancel()

    asyncio.run(run())
    assert silences == ["worker 0"] * 3


def test_two_silent_processes_must_both_answer() -> None:
    changes: list[bool] = []
    gates = {name: asyncio.Event() for name in ("a", "b")}

    async def run() -> None:
        probes = {name: gate.wait for name, gate in gates.items()}
        watching = asyncio.ensure_future(Liveness(probes, changes.append, INTERVAL_S, TIMEOUT_S).run())
        await eventually(lambda: changes == [True, True])
        gates["a"].set()
        await eventually(lambda: changes == [True, True, True])
        gates["b"].set()
        await eventually(lambda: changes == [True, True, True, False])
        watching.cancel()

    asyncio.run(run())
    assert changes[-1] is False


def test_a_refusal_is_an_answer_too() -> None:
    changes: list[bool] = []
    asked = []

    async def refuse() -> None:
        asked.append(1)
        raise Overloaded("full")

    async def run() -> None:
        watching = asyncio.ensure_future(Liveness({"x": refuse}, changes.append, INTERVAL_S, TIMEOUT_S).run())
        await eventually(lambda: len(asked) > 2)
        assert not watching.done()
        watching.cancel()

    asyncio.run(run())
    assert changes == []


def test_a_stalled_server_says_so_and_refuses_but_ends_nothing() -> None:
    house = make_house()

    async def run() -> None:
        async with client_of(house) as client:
            house.backend.is_paused = True
            body = {"text": "a", "sampling_params": {"max_new_tokens": 3}}
            open_call = asyncio.ensure_future(client.post("/generate", json=body))
            await eventually(lambda: house.frontend.num_open == 1)
            house.frontend.set_stalled(True)
            health = await client.get("/health")
            assert health.status_code == 503 and health.json() == {"status": "stalled"}
            refused = await client.post("/generate", json=body)
            assert refused.status_code == 503 and "retry-after" in refused.headers
            assert not open_call.done()
            house.frontend.set_stalled(False)
            house.backend.is_paused = False
            assert (await client.get("/health")).status_code == 200
            assert (await open_call).json()["meta_info"]["completion_tokens"] == 3

    asyncio.run(run())
    assert house.frontend.num_open == 0


def test_the_end_of_a_silence_does_not_undo_an_end() -> None:
    house = make_house()
    for state in (ServingState.DRAINING, ServingState.FAILED, ServingState.STARTING):
        house.frontend.state = state
        house.frontend.set_stalled(True)
        house.frontend.set_stalled(False)
        assert house.frontend.state is state


def test_the_worker_and_the_detokenizer_can_be_asked() -> None:
    class Echo:
        """A detokenizer process: it passes on what is not for it."""

        def send(self, message: Any) -> None:
            assert message == Answer(PROBE, True)
            asyncio.get_running_loop().call_soon(decoder.note_answer, message)

    decoder = ProcessDecoder(Echo())  # type: ignore[arg-type]

    async def run() -> bool:
        house = make_house()
        async with asyncio.timeout(5):
            await house.frontend.probe_worker()
            await decoder.probes["detokenizer"]()
        return True

    assert asyncio.run(run())
