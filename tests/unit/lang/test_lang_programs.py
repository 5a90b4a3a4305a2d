"""Programs in the manner of SGLang's documentation, one for each feature, unchanged but for the import, on the null model."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

import sapwood.lang as sgl
from sapwood.lang import (
    assistant,
    assistant_begin,
    assistant_end,
    function,
    gen,
    select,
    set_default_backend,
    system,
    user,
    user_begin,
    user_end,
)
from sapwood.lang.defaults import DEFAULTS


@pytest.fixture(autouse=True, scope="module")
def backend() -> Iterator[None]:
    before = DEFAULTS.backend
    with sgl.Engine(model_path="null", random_seed=1) as engine:
        set_default_backend(engine)
        yield
    DEFAULTS.backend = before


def test_questions_and_turns() -> None:
    @function
    def two_turns(s, first, second):  # type: ignore[no-untyped-def]
        s += system("You know about gardens.")
        s += user(first)
        s += assistant(gen("answer_1", max_tokens=16))
        s += user(second)
        s += assistant(gen("answer_2", max_tokens=16))
        return s

    state = two_turns("Which flowers like shade?", "And which like sun?")
    assert state["answer_1"] and state["answer_2"]
    assert [message["role"] for message in state.messages()] == ["system", "user", "assistant", "user", "assistant"]
    for message in state.messages():
        assert message["content"] in state.text()


def test_control_flow_follows_a_choice() -> None:
    @sgl.function
    def tool_use(s, question):  # type: ignore[no-untyped-def]
        s += "For this question: " + question + ", "
        s += "I take the " + sgl.gen("tool", choices=["ruler", "scales"]) + ". "
        if s["tool"] == "ruler":
            s += "Its length is" + sgl.gen("length", max_tokens=4)
        elif s["tool"] == "scales":
            s += "Its weight is" + sgl.gen("weight", max_tokens=4)

    state = tool_use.run(question="How heavy is a plum?")
    assert ("length" in state) == (state["tool"] == "ruler") and ("weight" in state) == (state["tool"] == "scales")
    assert len(state.get_meta_info("tool")["input_token_logprobs"]) == 2


def test_forks_expand_points() -> None:
    @sgl.function
    def expand(s):  # type: ignore[no-untyped-def]
        s += "Two rules for bread: 1. Be patient. 2. Use a hot oven.\n\n"
        forks = s.fork(2)
        for i, f in enumerate(forks):
            f += f"Rule {i + 1} at length:\n"
            f += sgl.gen("detail", max_tokens=20, stop="\n\n")
        s += "Rule 1:" + forks[0]["detail"] + "\n"
        s += "Rule 2:" + forks[1]["detail"] + "\n"
        s += "In short" + sgl.gen("summary", max_tokens=8)

    state = expand.run()
    assert state.text().startswith("Two rules") and state.text().endswith(state["summary"])


def test_samples_in_parallel_are_gathered() -> None:
    @sgl.function
    def sample(s, question, num):  # type: ignore[no-untyped-def]
        s += "Question: " + question + "\n"
        forks = s.fork(num)
        forks += "Reasoning:" + sgl.gen("reasoning", max_tokens=8) + "\n"
        forks += "Tool:" + sgl.gen("tool", choices=["paper", "head"]) + "\n"
        forks.join()

    state = sample.run(question="Compute 5 + 2.", num=4, temperature=1.0)
    assert len(state["reasoning"]) == len(state["tool"]) == 4


def test_batches_and_settings_of_a_run() -> None:
    @sgl.function
    def text_qa(s, question):  # type: ignore[no-untyped-def]
        s += "Q: " + question + "\n"
        s += "A:" + sgl.gen("answer", stop="\n")

    states = text_qa.run_batch(
        [{"question": "What is tea?"}, {"question": "What is ink?"}, {"question": "What is wax?"}],
        progress_bar=True,
        temperature=0,
        max_new_tokens=6,
    )
    for state in states:
        assert state.get_meta_info("answer")["completion_tokens"] <= 6


def test_streams_of_a_variable_sync_and_async() -> None:
    @sgl.function
    def talk(s, question):  # type: ignore[no-untyped-def]
        s += user(question)
        s += assistant(gen("first", max_tokens=8))
        s += assistant(gen("second", max_tokens=8))

    state = talk.run(question="Who is there?", stream=True)
    assert "".join(state.text_iter(var_name="second")) == state["second"]

    async def main() -> str:
        state = talk.run(question="Who is there?", stream=True)
        text = "".join([out async for out in state.text_async_iter(var_name="second")])
        assert text == state["second"]
        return text

    assert asyncio.run(main())


def test_messages_in_pieces() -> None:
    @function
    def example(s):  # type: ignore[no-untyped-def]
        s += system("Be brief.")
        with s.user():
            s += "Question: what is red?"
        s += user_begin() + "Think of fruit." + user_end()
        s += assistant_begin()
        s += "Answer: " + gen("answer", max_tokens=8, stop="\n")
        s += assistant_end()

    state = example()
    assert state.messages()[-1] == {"role": "assistant", "content": "Answer: " + state["answer"]}


@pytest.mark.parametrize(
    "method", [sgl.token_length_normalized, sgl.greedy_token_selection, sgl.unconditional_likelihood_normalized]
)
def test_choice_methods(method: Any) -> None:
    @sgl.function
    def capital(s):  # type: ignore[no-untyped-def]
        s += sgl.user("Which is the greatest port?")
        s += sgl.assistant(sgl.gen("answer", choices=["Hamburg", "Rotterdam", "Genoa"], choices_method=method))

    assert capital()["answer"] in ("Hamburg", "Rotterdam", "Genoa")


def test_select_scopes_and_copies() -> None:
    @sgl.function
    def program(s):  # type: ignore[no-untyped-def]
        with s.var_scope("whole"):
            s += "It is " + select("colour", choices=["red", "blue"]) + "."
        with s.copy() as other:
            other += " Aside:" + sgl.gen("aside", max_tokens=4)
        s += " The end."

    state = program.run()
    assert state["whole"] == f"It is {state['colour']}." and state.text() == state["whole"] + " The end."


def test_caching_and_flushing() -> None:
    @sgl.function
    def program(s, name):  # type: ignore[no-untyped-def]
        s += "A long and constant beginning of the text that all share. " * 3
        s += name + sgl.gen("x", max_tokens=3)

    assert sgl.flush_cache()
    program.cache()
    assert program.bind(name="Ann").run().get_meta_info("x")["cached_tokens"] > 100
    assert sgl.get_server_info() is not None
