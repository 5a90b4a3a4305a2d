"""What programs mean: order, variables, roles, branches, errors and cancellation, on a backend that a test scripts."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest
from langkit import ScriptedBackend, count_up

import sapwood.lang as sgl
from sapwood.errors import Aborted, ConfigError, EngineFailed, InvalidRequest
from sapwood.lang.defaults import DEFAULTS


@sgl.function
def question(s: Any, text: str) -> str:
    s += "Q: " + text + "\nA:" + sgl.gen("answer", max_tokens=7, stop="\n") + "\n"
    return str(s["answer"])


def failing(prompt: Any, settings: Any) -> Any:
    return EngineFailed("the worker died")


def test_text_and_generations_come_in_the_order_of_the_program() -> None:
    backend = ScriptedBackend(count_up())

    @sgl.function
    def program(s: Any) -> None:
        s += "a" + sgl.gen("x") + "b"
        s += sgl.gen("y")
        s += "c"

    state = program.run(backend=backend)
    assert state.text() == "a1b2c"
    assert (state["x"], state["y"]) == ("1", "2")
    assert [call.prompt.text for call in backend.calls] == ["a", "a1b"]


def test_a_program_takes_arguments_by_place_and_by_name_and_keeps_what_it_returns() -> None:
    backend = ScriptedBackend()
    for state in (
        question("why", backend=backend),
        question.run(text="why", backend=backend),
        question.bind(text="why")(backend=backend),
    ):
        assert state.text() == "Q: why\nA:x\n"
        assert state.ret_value == "x"
    with pytest.raises(TypeError, match="takes 1 arguments"):
        question.run("why", "not", backend=backend)


def test_settings_of_a_generation_go_before_those_of_the_run() -> None:
    backend = ScriptedBackend()
    question.run("why", backend=backend, temperature=0.5, max_new_tokens=3, stop=["?"])
    settings = backend.calls[0].settings
    assert (settings.max_new_tokens, settings.stop, settings.temperature) == (7, "\n", 0.5)


def test_a_parameter_with_the_name_of_a_setting_is_an_argument() -> None:
    backend = ScriptedBackend()

    @sgl.function
    def program(s: Any, n: int) -> None:
        s += str(n) + sgl.gen("x")

    assert program.run(n=3, backend=backend).text() == "3x"
    assert backend.calls[0].settings.n is None


def test_generations_do_not_block_and_reading_waits() -> None:
    backend = ScriptedBackend(count_up(), holds=True)

    @sgl.function
    def program(s: Any) -> None:
        s += "a" + sgl.gen("x") + "b" + sgl.gen("y")
        assert len(backend.calls) == 1, "the second needs the first one's text"
        threading.Timer(0.02, lambda: backend.release(backend.calls[0])).start()
        assert s["x"] == "1"
        backend.release(backend.calls[1])

    assert program.run(backend=backend).text() == "a1b2"


def test_forks_share_what_was_said_and_run_at_once() -> None:
    backend = ScriptedBackend(count_up(), holds=True)

    @sgl.function
    def program(s: Any) -> None:
        s += "root:" + sgl.gen("first")
        forks = s.fork(3)
        for index, fork in enumerate(forks):
            fork += f" {index} " + sgl.gen("tip")
            fork["number"] = index
        assert len(backend.calls) == 1, "branches wait for what they branch off from"
        backend.release(backend.calls[0])
        assert len(backend.calls) == 4, "and then run at once"
        for call in reversed(backend.calls[1:]):
            backend.release(call)
        forks.join()
        s += "|" + forks[1]["tip"]

    state = program.run(backend=backend)
    assert [call.prompt.text for call in backend.calls[1:]] == ["root:1 0 ", "root:1 1 ", "root:1 2 "]
    assert state["tip"] == ["4", "3", "2"] and state["number"] == [0, 1, 2]
    assert state["first"] == "1", "what was known before the fork is not gathered"
    assert state.text() == "root:1|3"


def test_a_group_says_to_each_branch() -> None:
    @sgl.function
    def program(s: Any) -> None:
        s += "a"
        forks = s.fork(2)
        forks += "b"
        forks += lambda index: f"{index}" + sgl.gen("x")
        forks.join("concate_and_append")

    assert program.run(backend=ScriptedBackend(count_up())).text() == "ab01b12"


def test_copies_and_scopes() -> None:
    @sgl.function
    def program(s: Any) -> None:
        s += "a"
        with s.copy() as other:
            other += "b" + sgl.gen("x")
        with s.var_scope("scope"):
            s += "c" + sgl.gen("y") + "d"
        s += "e"

    state = program.run(backend=ScriptedBackend(count_up()))
    assert state.text() == "ac2de" and state["scope"] == "c2d"


def test_roles_make_messages() -> None:
    @sgl.function
    def program(s: Any) -> None:
        s += sgl.system("sys")
        with s.user():
            s += "hi"
        s += s.user("there")
        s += sgl.assistant_begin()
        s += "well, " + sgl.gen("x")
        s += sgl.assistant_end()

    state = program.run(backend=ScriptedBackend())
    assert state.text() == "SYSTEM:sys\nUSER:hi\nUSER:there\nASSISTANT:well, x\n"
    assert state.messages() == [
        {"role": "system", "content": "sys"},
        {"role": "user", "content": "hi"},
        {"role": "user", "content": "there"},
        {"role": "assistant", "content": "well, x"},
    ]


def test_a_message_inside_a_message_is_an_error() -> None:
    state = sgl.function(lambda s: s.__iadd__(sgl.user(sgl.assistant("x")))).run(backend=ScriptedBackend())
    assert isinstance(state.error(), InvalidRequest)


def test_samples_and_a_name_that_is_used_again() -> None:
    @sgl.function
    def program(s: Any) -> None:
        s += sgl.gen("many", n=3)
        seen = []
        for _ in range(3):
            s += sgl.gen("again")
            seen.append(s["again"])
        s["seen"] = seen

    state = program.run(backend=ScriptedBackend(count_up()))
    assert state["many"] == ["1", "1'", "1''"] and state.text() == "1234"
    assert state["seen"] == ["2", "3", "4"]
    assert len(state.get_meta_info("many")) == 3


def test_variables_can_be_asked_for_and_missing_ones_are_key_errors() -> None:
    @sgl.function
    def program(s: Any) -> None:
        s += sgl.gen("x")
        assert "x" in s and "y" not in s
        with pytest.raises(KeyError):
            s["y"]

    state = program.run(backend=ScriptedBackend())
    assert "x" in state and state.get_var("x") == "x"
    state.set_var("y", 5)
    assert state["y"] == 5


def test_a_failed_generation_is_the_states_error_and_raised_by_reading() -> None:
    @sgl.function
    def program(s: Any) -> None:
        s += "a" + sgl.gen("x") + "b"

    state = program.run(backend=ScriptedBackend(failing))
    assert isinstance(state.error(), EngineFailed)
    for read in (lambda: state["x"], state.text, state.sync, lambda: list(state.text_iter())):
        with pytest.raises(EngineFailed, match="worker died"):
            read()


def test_an_error_in_a_branch_reaches_the_caller() -> None:
    def say(prompt: Any, settings: Any) -> Any:
        return EngineFailed("lost") if "bad" in prompt.text else "x"

    @sgl.function
    def unread(s: Any) -> None:
        good, bad = s.fork(2)
        good += "good" + sgl.gen("x")
        bad += "bad" + sgl.gen("x")
        assert good["x"] == "x" and good.error() is None
        assert isinstance(bad.error(), EngineFailed)

    @sgl.function
    def joined(s: Any) -> None:
        forks = s.fork(2)
        forks += lambda index: ("good" if index else "bad") + sgl.gen("x")
        forks.join()

    assert isinstance(unread.run(backend=ScriptedBackend(say)).error(), EngineFailed)
    with pytest.raises(EngineFailed, match="lost"):
        joined.run(backend=ScriptedBackend(say))


def test_branches_of_a_failed_state_fail() -> None:
    @sgl.function
    def program(s: Any) -> None:
        s += sgl.gen("x")
        early = s.fork(1)[0]
        early += sgl.gen("y")
        with pytest.raises(EngineFailed):
            s.sync()
        late = s.fork(1)[0]
        for branch in (early, late):
            with pytest.raises(EngineFailed):
                branch.text()

    assert isinstance(program.run(backend=ScriptedBackend(failing)).error(), EngineFailed)


def test_what_the_body_raises_is_raised_and_ends_what_runs() -> None:
    backend = ScriptedBackend(holds=True)

    @sgl.function
    def program(s: Any) -> None:
        forks = s.fork(2)
        forks += "a" + sgl.gen("x")
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        program.run(backend=backend)
    assert len(backend.cancelled) == 2

    state = program.run(backend=ScriptedBackend(), stream=True)
    with pytest.raises(ZeroDivisionError):
        list(state.text_iter())
    assert isinstance(state.error(), ZeroDivisionError)


def test_cancelling_ends_generations_and_tells_who_waits() -> None:
    backend = ScriptedBackend(holds=True)
    state = question.run("why", backend=backend, stream=True)
    while not backend.calls:
        state._stream._signal.__enter__(), state._stream._signal.__exit__()  # type: ignore[attr-defined]
    threading.Timer(0.02, state.cancel).start()
    with pytest.raises(Aborted):
        list(state.text_iter("answer"))
    assert backend.cancelled == backend.calls
    assert isinstance(state.error(), Aborted)


def test_ctrl_c_while_reading_cancels() -> None:
    backend = ScriptedBackend(holds=True)

    @sgl.function
    def program(s: Any) -> None:
        s += sgl.gen("x")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        program.run(backend=backend)
    assert backend.cancelled == backend.calls and len(backend.calls) == 1


@pytest.mark.parametrize("stream", [True, False])
def test_a_stream_adds_up_to_the_text(stream: bool) -> None:
    @sgl.function
    def program(s: Any) -> None:
        s += sgl.user("hello")
        s += sgl.assistant("so: " + sgl.gen("x") + " and " + sgl.gen("y"))
        s += sgl.select("z", ["long one", "short"])

    state = program.run(backend=ScriptedBackend(lambda prompt, settings: "abc"), stream=stream)
    pieces = list(state.text_iter())
    assert "".join(pieces) == state.text() == "USER:hello\nASSISTANT:so: abc and abc\nshort"
    assert (pieces.count("a") == 2) is stream
    for name, text in (("x", "abc"), ("y", "abc"), ("z", "short")):
        assert "".join(state.text_iter(name)) == text == state[name]


def test_an_async_stream_adds_up_too_and_carries_meta_data() -> None:
    async def read(state: Any) -> tuple[str, list[Any]]:
        text = "".join([piece async for piece in state.text_async_iter()])
        return text, [item async for item in state.text_async_iter("answer", return_meta_data=True)]

    state = question.run("why", backend=ScriptedBackend(lambda prompt, settings: "abc"), stream=True)
    text, items = asyncio.run(read(state))
    assert text == state.text()
    assert "".join(piece for piece, _ in items) == "abc" and items[-1][1] == {"finish_reason": {"type": "stop"}}


def test_a_cancelled_reader_cancels_the_program() -> None:
    backend = ScriptedBackend(holds=True)

    async def main() -> Any:
        state = question.run("why", backend=backend, stream=True)

        async def read() -> list[str]:
            return [piece async for piece in state.text_async_iter("answer")]

        task = asyncio.create_task(read())
        await asyncio.sleep(0)  # the task reads
        while not backend.calls:
            await asyncio.sleep(0.001)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        return state

    state = asyncio.run(main())
    assert backend.cancelled == backend.calls and isinstance(state.error(), Aborted)


def test_select_takes_the_best_and_reports_all() -> None:
    @sgl.function
    def program(s: Any) -> None:
        s += "I need a " + sgl.select("tool", ["calculator", "map"])
        s += "!" + sgl.gen("same", choices=["bb", "a"])

    state = program.run(backend=ScriptedBackend())
    assert state.text() == "I need a map!a"
    meta = state.get_meta_info("tool")
    assert meta["normalized_prompt_logprobs"] == [-10.0, -3.0]
    assert meta["input_token_logprobs"][1] == [(-3.0, 0, "map")]
    assert sum(meta["choice_probabilities"]) == pytest.approx(1.0)


def test_pictures_fail_clearly() -> None:
    @sgl.function
    def program(s: Any) -> None:
        s += sgl.user(sgl.image("cat.png") + "what is it?")
        s += sgl.assistant(sgl.gen("x"))

    state = program.run(backend=ScriptedBackend())
    with pytest.raises(InvalidRequest, match="image"):
        state["x"]
    assert isinstance(
        sgl.function(lambda s: s.__iadd__(sgl.video("a.mp4", 3))).run(backend=ScriptedBackend()).error(), InvalidRequest
    )


def test_reasoning_is_kept_apart() -> None:
    @sgl.function
    def program(s: Any) -> None:
        s += sgl.assistant(sgl.separate_reasoning(sgl.gen("answer"), "qwen3"))

    state = program.run(backend=ScriptedBackend(lambda prompt, settings: "<think>\nhm\n</think>\n\nyes"))
    assert (state["answer"], state["answer_reasoning_content"]) == ("yes", "hm")
    assert state.messages()[-1]["content"] == "yes"
    with pytest.raises(InvalidRequest, match="model_type"):
        sgl.separate_reasoning(sgl.gen("answer"), "no-such")


@pytest.mark.parametrize(
    ("make", "error"),
    [
        (lambda: sgl.gen("x", 5, no_such=1), TypeError),
        (lambda: sgl.gen("x", regex="(", max_tokens=3), Exception),
        (lambda: sgl.gen("x", regex="a", json_schema="{}"), InvalidRequest),
        (lambda: sgl.gen("x", dtype=list), InvalidRequest),
        (lambda: sgl.select("x", []), InvalidRequest),
        (lambda: sgl.select("x", "abc"), InvalidRequest),
        (lambda: sgl.select("x", ["a"], temperature=1.0), InvalidRequest),
        (lambda: "a" + sgl.gen("x") + 5, TypeError),
        (lambda: sgl.function(lambda state: None), TypeError),
    ],
)
def test_mistakes_show_where_they_are_written(make: Any, error: type[Exception]) -> None:
    with pytest.raises(error):
        make()


def test_words_with_a_type_are_constrained() -> None:
    backend = ScriptedBackend(lambda prompt, settings: "1")

    @sgl.function
    def program(s: Any) -> None:
        s += sgl.gen_int("a", max_tokens=4) + sgl.gen_string("b") + sgl.gen("c", dtype="bool") + sgl.gen("d", json_schema="{}")

    program.run(backend=backend)
    settings = [call.settings for call in backend.calls]
    assert all(s.is_constrained for s in settings) and settings[0].max_new_tokens == 4


def test_the_default_backend(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(DEFAULTS, "backend", None)
    with pytest.raises(ConfigError, match="no backend"):
        question.run("why")
    assert sgl.flush_cache() is False and sgl.get_server_info() is None
    sgl.set_default_backend(ScriptedBackend())
    assert question.run("why")["answer"] == "x"
    assert sgl.flush_cache() is True and sgl.get_server_info() == {"version": "scripted"}
    with pytest.raises(TypeError, match="is no backend"):
        sgl.set_default_backend(5)
