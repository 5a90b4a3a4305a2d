"""Many runs: order, the shared prefix, errors, Ctrl-C, memory; and what the tracer writes down."""

from __future__ import annotations

import gc
import os
import signal
import sys
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from langkit import ScriptedBackend

import sapwood.lang as sgl
from sapwood import LLM
from sapwood.errors import InvalidRequest
from sapwood.lang.tracer import stand_in

SHOTS = "".join(f"Q: what is {n} + {n}?\nA: {2 * n}\n" for n in range(8))


@sgl.function
def few_shot(s: Any, text: str) -> None:
    s += SHOTS
    s += f"Q: {text}\nA:" + sgl.gen("answer", max_tokens=6)


@pytest.fixture(scope="module")
def llm() -> Iterator[LLM]:
    with LLM("null", random_seed=1) as llm:
        yield llm


def batch(count: int) -> list[dict[str, str]]:
    return [{"text": f"question {index}"} for index in range(count)]


def test_results_come_in_the_order_of_the_items_and_the_prefix_goes_first() -> None:
    backend = ScriptedBackend(lambda prompt, settings: prompt.text[-13:])
    states = few_shot.run_batch(batch(20), backend=backend, num_threads=3)
    assert [state["answer"] for state in states] == [f"question {index}\nA:"[-13:] for index in range(20)]  # type: ignore[union-attr]
    assert backend.cached == [SHOTS + "Q: "]


@pytest.mark.parametrize("items", [[("a",), ("b",)], [["a"], ["b"]], [{"text": "a"}, {"text": "b"}]])
def test_items_are_keywords_or_values_in_order(items: Any) -> None:
    states = few_shot.run_batch(items, backend=ScriptedBackend())
    assert [state.text()[len(SHOTS) :] for state in states] == ["Q: a\nA:x", "Q: b\nA:x"]


def test_what_is_the_same_in_all_items_belongs_to_the_prefix() -> None:
    document = "a document of some length, " * 4

    @sgl.function
    def ask(s: Any, document: str, text: str) -> None:
        s += sgl.system(document)
        s += sgl.user(text)
        s += sgl.assistant(sgl.gen("x"))

    backend = ScriptedBackend()
    ask.run_batch([{"document": document, "text": str(n)} for n in range(3)], backend=backend)
    assert backend.cached == [f"SYSTEM:{document}\nUSER:"]


def test_a_body_that_cannot_be_traced_is_run_all_the_same() -> None:
    @sgl.function
    def program(s: Any, numbers: list[int]) -> None:
        s += "x" * 100
        s += str(sum(numbers)) + sgl.gen("x")

    backend = ScriptedBackend()
    states = program.run_batch([{"numbers": [1, 2]}, {"numbers": [3]}], backend=backend)
    assert [state.text()[100:] for state in states] == ["3x", "3x"]
    assert backend.cached == ["x" * 100]


def test_generator_style_and_an_empty_batch() -> None:
    states = few_shot.run_batch(batch(5), backend=ScriptedBackend(), generator_style=True)
    assert not isinstance(states, list)
    assert [state["answer"] for state in states] == ["x"] * 5
    assert few_shot.run_batch([], backend=ScriptedBackend()) == []


def test_the_first_error_of_a_body_ends_the_batch(llm: LLM) -> None:
    @sgl.function
    def program(s: Any, number: int) -> None:
        s += f"{number}" + sgl.gen("x", max_tokens=2000, ignore_eos=True)
        if number == 3:
            raise ZeroDivisionError
        s.sync()

    with pytest.raises(ZeroDivisionError):
        program.run_batch([{"number": n} for n in range(40)], backend=llm)
    assert_idle(llm)


def test_an_error_of_a_generation_stays_with_its_item(llm: LLM) -> None:
    states = few_shot.run_batch(batch(3), backend=llm, top_p=5.0)
    assert all(isinstance(state.error(), InvalidRequest) for state in states)
    assert not any(state.error() for state in few_shot.run_batch(batch(3), backend=llm))


def test_a_trace_shows_the_program() -> None:
    @sgl.function
    def program(s: Any, text: str) -> None:
        s += sgl.user("Say " + text)
        s += sgl.assistant(sgl.gen("x"))
        forks = s.fork(2)
        forks += s["x"] + sgl.select("y", ["a", "b"])
        forks.join()

    recorder = program.trace(backend=ScriptedBackend())
    labels = [node.label for node in recorder.nodes]
    assert labels[:5] == ["user begins", "constant 'Say {text}'", "user ends", "assistant begins", "gen(x)"]
    assert labels.count("select(y, 2 choices)") == 2 and "fork(2)" in labels
    assert recorder.prefix.text == "USER:Say "
    assert recorder.get("y") == [stand_in("y")] * 2
    assert "after %0" in str(recorder.graph)


def test_cache_computes_the_prefix(llm: LLM) -> None:
    llm.flush_cache()
    few_shot.cache(llm)
    assert few_shot.run("new", backend=llm).get_meta_info("answer")["cached_tokens"] >= len(SHOTS) - 16


def assert_idle(llm: LLM) -> None:
    assert llm._desk._open == {} and not llm._desk._worker.has_work


def test_a_batch_on_an_engine_computes_its_prefix_once(llm: LLM) -> None:
    llm.flush_cache()
    states = few_shot.run_batch(batch(30), backend=llm)
    assert all(state.get_meta_info("answer")["cached_tokens"] >= len(SHOTS) - 16 for state in states)  # type: ignore[union-attr]
    assert_idle(llm)


def test_ctrl_c_ends_a_batch_cleanly(llm: LLM) -> None:
    begun = []

    @sgl.function
    def program(s: Any, text: str) -> None:
        s += text + sgl.gen("x", max_tokens=200, ignore_eos=True)
        begun.append(text)
        if len(begun) == 100:
            os.kill(os.getpid(), signal.SIGINT)
        s.sync()

    with pytest.raises(KeyboardInterrupt):
        program.run_batch(batch(1000), backend=llm, num_threads=32)
    assert 100 <= len(begun) < 300, "the rest did not begin"
    assert_idle(llm)
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("sapwood-program")]
    assert few_shot.run("again", backend=llm).error() is None


def test_a_thousand_items_in_flat_memory_with_a_bar(llm: LLM, capfd: pytest.CaptureFixture[str]) -> None:
    few_shot.run_batch(batch(50), backend=llm)
    held = []
    states = few_shot.run_batch(batch(1000), backend=llm, progress_bar=True, generator_style=True, max_new_tokens=2)
    for index, state in enumerate(states):
        assert state["answer"] is not None
        if index in (200, 999):
            gc.collect()
            held.append(sys.getallocatedblocks())
    assert held[1] - held[0] < 20_000, f"{held} blocks of memory after 200 and after 1000 items"
    assert "running programs: done" in capfd.readouterr().err
