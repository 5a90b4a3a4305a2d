"""`LLM` on the null model: streams, threads, tasks, and what happens when somebody stops listening."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from collections.abc import Iterator

import pytest

from sapwood import LLM, EngineFailed, InvalidRequest, SamplingParams, Unavailable
from sapwood.offline import Call

GREEDY = SamplingParams(temperature=0.0, max_new_tokens=24, ignore_eos=True)
LONG = SamplingParams(temperature=0.0, max_new_tokens=2000, ignore_eos=True)


@pytest.fixture(scope="module")
def llm() -> Iterator[LLM]:
    with LLM("null", null_step_ms=0.2) as llm:
        yield llm


def assert_idle(llm: LLM) -> None:
    """Nothing is left in the registry, the outbox or the worker."""
    desk = llm._desk
    assert desk._open == {} and desk._outbox == [] and not desk._worker.has_work
    assert desk._detokenizer.num_watched == 0


def test_a_stream_adds_up_to_the_whole(llm: LLM) -> None:
    (whole,) = llm.generate("The sea", GREEDY)
    results = list(llm.stream("The sea", GREEDY))
    assert len(results) > 5
    assert "".join(result.delta for result in results) == results[-1].text == whole.text
    assert [result.finish_reason for result in results] == [None] * (len(results) - 1) + ["length"]
    assert results[-1].token_ids == whole.token_ids
    assert_idle(llm)


def test_a_stream_of_samples(llm: LLM) -> None:
    params = SamplingParams(n=2, seed=1, max_new_tokens=8, ignore_eos=True)
    last = {result.sample_index: result.text for result in llm.stream("x", params)}
    assert last == {result.sample_index: result.text for result in llm.generate("x", params)}


def test_stream_chat(llm: LLM) -> None:
    conversation = [{"role": "user", "content": "hi"}]
    assert list(llm.stream_chat(conversation, GREEDY))[-1].text == llm.chat(conversation, GREEDY)[0].text


def test_a_stop_string_is_never_shown_in_part(llm: LLM) -> None:
    (whole,) = llm.generate("The sea", GREEDY)
    stop = whole.text[10:16]
    params = SamplingParams(temperature=0.0, max_new_tokens=24, ignore_eos=True, stop=(stop,))
    shown = "".join(result.delta for result in llm.stream("The sea", params))
    assert shown == whole.text[: whole.text.index(stop)]
    assert_idle(llm)


def test_closing_a_stream_ends_the_request(llm: LLM) -> None:
    stream = llm.stream("The sea", LONG)
    next(stream)
    stream.close()  # type: ignore[attr-defined]
    assert_idle(llm)


def test_mistakes_show_when_the_stream_is_made(llm: LLM) -> None:
    with pytest.raises(InvalidRequest, match="must not be empty"):
        llm.stream("", GREEDY)


def test_the_cache_is_not_flushed_under_a_running_request(llm: LLM) -> None:
    stream = llm.stream("The sea", LONG)
    next(stream)
    with pytest.raises(Unavailable):
        llm.flush_cache()
    assert next(stream).finish_reason is None
    stream.close()  # type: ignore[attr-defined]
    llm.flush_cache()


def test_ctrl_c_ends_the_call_and_leaves_the_llm_usable(llm: LLM) -> None:
    (before,) = llm.generate("The sea", GREEDY)
    timer = threading.Timer(0.15, os.kill, (os.getpid(), signal.SIGINT))
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        llm.generate(["a", "b", "c"] * 100, LONG)
    timer.join()
    assert_idle(llm)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    assert llm.generate("The sea", GREEDY)[0].text == before.text


def test_ctrl_c_during_a_step_waits_for_it(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    step, finished = llm._desk._worker.step, []

    def slow_step(messages: list[object]) -> object:
        os.kill(os.getpid(), signal.SIGINT)
        news = step(messages)  # type: ignore[arg-type]
        finished.append(True)
        return news

    with monkeypatch.context() as patch:
        patch.setattr(llm._desk._worker, "step", slow_step)
        with pytest.raises(KeyboardInterrupt):
            llm.generate("The sea", GREEDY)
    assert finished
    assert_idle(llm)
    assert llm.generate("The sea", GREEDY)[0].finish_reason == "length"


def test_threads_share_batches(llm: LLM) -> None:
    prompts = [f"prompt {i}" for i in range(8)]
    alone = [llm.generate(prompt, GREEDY)[0].text for prompt in prompts]
    together: dict[int, str] = {}

    def work(index: int) -> None:
        together[index] = llm.generate(prompts[index], GREEDY)[0].text

    steps = llm._desk._num_turns
    threads = [threading.Thread(target=work, args=(index,)) for index in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [together[index] for index in range(8)] == alone
    assert llm._desk._num_turns - steps < 8 * len(alone[0]), "one step serves several threads"
    assert_idle(llm)


async def collect(llm: LLM, prompt: str, params: SamplingParams) -> str:
    return "".join([result.delta async for result in llm.astream(prompt, params)])


def test_tasks_share_batches(llm: LLM) -> None:
    async def main() -> list[str]:
        streams = [collect(llm, f"prompt {i}", GREEDY) for i in range(6)]
        *streamed, whole = await asyncio.gather(*streams, llm.async_generate(["prompt 0", "prompt 1"], GREEDY))
        assert isinstance(whole, list)
        assert [result.text for result in whole] == streamed[:2]
        return [str(text) for text in streamed]

    assert asyncio.run(main()) == [llm.generate(f"prompt {i}", GREEDY)[0].text for i in range(6)]
    assert_idle(llm)


def test_a_cancelled_task_ends_its_request(llm: LLM) -> None:
    async def main() -> None:
        task = asyncio.create_task(collect(llm, "The sea", LONG))
        other = asyncio.create_task(llm.async_generate(["a"] * 40, LONG))
        await asyncio.sleep(0.05)
        task.cancel()
        other.cancel()
        results = await asyncio.gather(task, other, return_exceptions=True)
        assert all(isinstance(result, asyncio.CancelledError) for result in results)

    asyncio.run(main())
    assert_idle(llm)


def test_an_async_stream_that_is_left_early_ends_its_request(llm: LLM) -> None:
    async def main() -> None:
        stream = llm.astream("The sea", LONG)
        async for _ in stream:
            break
        await stream.aclose()  # type: ignore[attr-defined]

    asyncio.run(main())
    assert_idle(llm)


def test_a_failed_step_fails_the_call_and_the_llm(monkeypatch: pytest.MonkeyPatch) -> None:
    with LLM("null") as llm:

        def fail(messages: list[object]) -> object:
            raise EngineFailed("the step failed")

        monkeypatch.setattr(llm._desk._worker, "step", fail)
        with pytest.raises(EngineFailed, match="the step failed"):
            llm.generate("x")
        with pytest.raises(EngineFailed, match="make a new one"):
            llm.generate("x")


def test_a_call_that_is_closed_while_it_turns_submits_nothing_more(llm: LLM) -> None:
    requests = llm._requests([[97], [98], [99]], LONG, None)
    call = Call(llm._desk, requests, 1, partial=True)
    turning = threading.Thread(target=lambda: [call.turn() for _ in range(50)])
    turning.start()
    call.close()
    turning.join()
    assert_idle(llm)
