"""The registry: one terminal event for each request, nothing stale, late or doubled, aborts that are not lost."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from serverkit import FakeBackend

from sapwood.core.sampling import SamplingParams
from sapwood.errors import EngineFailed, InvalidRequest, Overloaded, Unavailable
from sapwood.messages.types import Abort, Finish, StepTexts, Submit, TextEvent, TokenEvent, Watch, unpack_ids
from sapwood.server.frontend import Frontend
from sapwood.server.limits import ServingLimits, ServingState
from sapwood.server.record import Update
from sapwood.server.requests import GenerateRequest, PromptRequest
from sapwood.server.stream import Stream

LIMITS = ServingLimits(context_len=64, pool_tokens=48, vocab_size=259, max_open_requests=4)


def make(limits: ServingLimits = LIMITS) -> tuple[Frontend, FakeBackend]:
    backend = FakeBackend()
    frontend = Frontend(backend, random_seed=1)
    backend.deliver = frontend.on_message
    frontend.start_serving(limits)
    return frontend, backend


def call(rid: str = "r", n: int = 1, ids: tuple[int, ...] = (1, 2, 3), **params: Any) -> GenerateRequest:
    return GenerateRequest(
        (PromptRequest(rid=rid, token_ids=list(ids), params=SamplingParams(n=n, **{"max_new_tokens": 4, **params})),)
    )


def texts(number: int, index: int, ids: list[int], text: str, finish: Finish | None = None, epoch: int = 1) -> StepTexts:
    return StepTexts(epoch, [TextEvent(TokenEvent(number, index, ids, finish), text, index + len(ids))])


async def read(stream: Stream) -> list[Update]:
    updates = [batch async for batch in stream]
    assert all(updates), "the reader was woken for nothing"
    return [update for batch in updates for update in batch]


def run(test: Callable[[], Awaitable[None]]) -> None:
    asyncio.run(asyncio.wait_for(test(), 10))  # type: ignore[arg-type]


def test_a_request_is_watched_then_submitted_with_resolved_parameters() -> None:
    async def test() -> None:
        frontend, backend = make()
        frontend.open(call(n=2, max_new_tokens=None, ids=tuple(range(40))))
        first, second = backend.sent_of(Submit)
        assert [watch.number for watch in backend.watched] == [first.number, second.number]
        assert isinstance(backend.watched[0], Watch) and list(unpack_ids(backend.watched[0].token_ids)) == list(range(24, 40))
        assert first.params.max_new_tokens == 48 - 40 and first.params.n == 1
        assert first.params.seed is not None and first.params.seed == second.params.seed
        assert (first.group, second.group) == (first.number, first.number)
        assert frontend.num_open == 2

    run(test)


def test_seeds_differ_between_requests_and_repeat_with_the_servers_seed() -> None:
    async def test() -> None:
        seeds = []
        for _ in range(2):
            frontend, backend = make()
            for rid in ("a", "b"):
                frontend.open(call(rid))
            seeds.append([submit.params.seed for submit in backend.sent_of(Submit)])
        assert seeds[0] == seeds[1] and seeds[0][0] != seeds[0][1]

    run(test)


def test_updates_that_nobody_read_are_merged() -> None:
    async def test() -> None:
        frontend, _ = make()
        stream = frontend.open(call())
        frontend.on_message(texts(1, 0, [10], "a"))
        frontend.on_message(texts(1, 1, [11], "b"))
        updates = await anext(stream)
        assert [(update.text, update.token_ids, update.first) for update in updates] == [("ab", [10, 11], 0)]
        frontend.on_message(texts(1, 2, [12], "c"))
        frontend.on_message(texts(1, 3, [13], "d", Finish("length")))
        (update,) = await read(stream)
        assert (update.text, update.token_ids, update.first, update.finish) == ("cd", [12, 13], 2, Finish("length"))
        assert update.record.text == "abcd" and frontend.num_open == 0

    run(test)


def test_stale_late_and_doubled_news_are_dropped_and_counted() -> None:
    async def test() -> None:
        frontend, _ = make()
        stream = frontend.open(call())
        frontend.on_message(texts(1, 0, [10], "a"))
        frontend.on_message(texts(1, 0, [10], "a"))
        frontend.on_message(texts(1, 1, [11], "x", epoch=0))
        frontend.on_message(texts(99, 0, [11], "x"))
        frontend.on_message(texts(1, 1, [11], "b", Finish("length")))
        frontend.on_message(texts(1, 2, [12], "c", Finish("length")))
        (update,) = await read(stream)
        assert update.text == "ab" and update.token_ids == [10, 11]
        dropped = frontend.dropped
        assert (dropped.duplicate, dropped.stale, dropped.late, dropped.gap) == (1, 1, 2, 0)

    run(test)


def test_a_gap_fails_the_request_instead_of_leaving_out_tokens() -> None:
    async def test() -> None:
        frontend, backend = make()
        stream = frontend.open(call())
        frontend.on_message(texts(1, 1, [11], "b"))
        (update,) = await read(stream)
        assert update.finish is not None and update.finish.kind == "error" and update.finish.status == 500
        assert frontend.dropped.gap == 1 and backend.sent_of(Abort)[0].numbers == [1]

    run(test)


def test_a_reader_that_leaves_aborts_every_sample_once() -> None:
    async def test() -> None:
        frontend, backend = make()
        stream = frontend.open(call(n=3))
        frontend.on_message(texts(2, 0, [10], "a", Finish("length")))
        stream.close()
        stream.close()
        (abort,) = backend.sent_of(Abort)
        assert abort.numbers == [1, 3] and backend.forgotten == [1, 3] and frontend.num_open == 0
        frontend.on_message(texts(1, 0, [10], "a"))
        assert frontend.dropped.late == 1

    run(test)


def test_operators_abort_by_the_beginning_of_the_rid() -> None:
    async def test() -> None:
        frontend, backend = make()
        batch, other = frontend.open(call("job", n=2)), frontend.open(call("else"))
        assert frontend.abort("job") == 2
        assert [update.finish.kind for update in await read(batch) if update.finish] == ["abort", "abort"]
        assert backend.sent_of(Abort)[0].numbers == [1, 2] and frontend.num_open == 1
        assert frontend.abort("nobody") == 0 and len(backend.sent_of(Abort)) == 1
        assert frontend.abort("") == 1
        assert [update.finish.kind for update in await read(other) if update.finish] == ["abort"]

    run(test)


def test_a_dead_replica_ends_everything_with_its_error() -> None:
    async def test() -> None:
        frontend, _ = make()
        streams = [frontend.open(call(rid)) for rid in "ab"]
        waiting = asyncio.ensure_future(frontend.flush_cache())
        await asyncio.sleep(0)
        frontend.fail_all(EngineFailed("a worker died; start the server again"))
        for stream in streams:
            (update,) = await read(stream)
            assert update.finish is not None and (update.finish.kind, update.finish.status) == ("error", 500)
        assert frontend.state is ServingState.FAILED and frontend.num_open == 0
        with pytest.raises(Unavailable):
            frontend.open(call())
        with pytest.raises(Unavailable):
            await waiting

    run(test)


def test_a_full_outbox_refuses_new_requests_but_never_loses_an_abort() -> None:
    async def test() -> None:
        frontend, backend = make()
        stream = frontend.open(call("a"))
        backend.full = Overloaded("full", retry_after_s=1.0)
        with pytest.raises(Overloaded):
            frontend.open(call("b"))
        assert frontend.num_open == 1
        stream.close()
        assert backend.sent_of(Abort) == []
        backend.full = None
        frontend.on_message(texts(1, 0, [10], "a"))
        assert {number for abort in backend.sent_of(Abort) for number in abort.numbers} >= {1}
        frontend.open(call("b"))

    run(test)


def test_limits_on_what_is_open() -> None:
    async def test() -> None:
        frontend, _ = make()
        frontend.open(call("a", n=3))
        with pytest.raises(InvalidRequest, match="at most 4"):
            frontend.open(call("b", n=5))
        with pytest.raises(Overloaded) as caught:
            frontend.open(call("b", n=2))
        assert caught.value.retry_after_s
        with pytest.raises(InvalidRequest, match="unfinished"):
            frontend.open(call("a_1"))
        frontend.open(call("b"))
        frontend.abort("")
        frontend.open(call("a", n=3))

    run(test)


def test_the_pool_limits_a_request_as_the_context_does() -> None:
    async def test() -> None:
        frontend, _ = make()
        frontend.open(call("fits", ids=(1,) * 44, max_new_tokens=4))
        for params in ({"ids": (1,) * 45}, {"ids": (1,) * 48, "max_new_tokens": None}):
            with pytest.raises(InvalidRequest):
                frontend.open(call("too-long", **params))  # type: ignore[arg-type]

    run(test)


def test_truncation_when_the_server_was_started_so() -> None:
    async def test() -> None:
        frontend, backend = make(ServingLimits(64, 48, 259, 4, allow_auto_truncate=True))
        frontend.open(call("a", ids=(1,) * 100))
        frontend.open(call("b", ids=(1,) * 46))
        first, second = backend.sent_of(Submit)
        assert (len(unpack_ids(first.token_ids)), first.params.max_new_tokens) == (47, 1)
        assert (len(unpack_ids(second.token_ids)), second.params.max_new_tokens) == (46, 2)

    run(test)


def test_draining_waits_and_then_aborts() -> None:
    async def test() -> None:
        frontend, backend = make()
        stream = frontend.open(call("a"))
        draining = asyncio.ensure_future(frontend.drain(5.0))
        await asyncio.sleep(0)
        with pytest.raises(Unavailable):
            frontend.open(call("b"))
        frontend.on_message(texts(1, 0, [10], "a", Finish("length")))
        assert await draining is True
        assert len(await read(stream)) == 1
        frontend.start_serving(LIMITS)
        frontend.open(call("c"))
        assert await frontend.drain(0.01) is False
        assert backend.sent_of(Abort) and frontend.num_open == 0

    run(test)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 7), st.integers(0, 4)), max_size=60), st.integers(0, 2**16))
def test_one_terminal_event_for_each_request_whatever_happens(moves: list[tuple[int, int]], salt: int) -> None:
    """Random opens, steps, repeats, aborts, leaving readers and a death: every stream ends, each sample exactly once."""

    async def test() -> None:
        frontend, backend = make(ServingLimits(64, 48, 259, 16))
        streams: list[Stream] = []
        for count, (move, which) in enumerate(moves):
            match move:
                case 0 | 1 if frontend.state is ServingState.READY and frontend.num_open + which % 3 + 1 <= 16:
                    streams.append(frontend.open(call(f"{count}", n=which % 3 + 1, max_new_tokens=which)))
                case 2 | 3 | 4:
                    backend.step()
                case 5:
                    frontend.abort(str(which))
                case 6 if streams:
                    streams[(which + salt) % len(streams)].close()
                case 7 if which == 4:
                    frontend.fail_all(EngineFailed("gone"))
        while frontend.num_open and frontend.state is ServingState.READY:
            backend.step()
        for stream in streams:
            ends = [update.record.number for update in await read(stream) if update.finish is not None]
            assert sorted(ends) == [record.number for record in stream.records]
        assert frontend.num_open == 0

    asyncio.run(test())


def test_a_refusal_by_the_detokenizer_reaches_the_client_and_the_worker() -> None:
    async def test() -> None:
        frontend, backend = make()
        refused = Finish("error", message="no", status=400, code="invalid_request")
        backend.watch = lambda watch: frontend.on_message(texts(watch.number, 0, [], "", refused))  # type: ignore[method-assign]
        stream = frontend.open(call())
        assert [update.finish for update in await read(stream)] == [refused]
        assert backend.sent_of(Submit) == [] and backend.sent_of(Abort)[0].numbers == [1] and frontend.num_open == 0

    run(test)
