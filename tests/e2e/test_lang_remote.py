"""Programs on a server: the same as in this process, through its own routes, OpenAI's and Anthropic's."""

from __future__ import annotations

import runpy
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from serving import RunningServer, serving, wait_until

import sapwood.lang as sgl
from sapwood import LLM, Aborted, InvalidRequest, Unavailable

GREEDY: dict[str, Any] = {"temperature": 0, "ignore_eos": True}
METHODS = [sgl.token_length_normalized, sgl.greedy_token_selection, sgl.unconditional_likelihood_normalized]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    with serving(Path(tmp_path_factory.mktemp("lang")), "null", "--null-step-ms", "0.2") as server:
        yield server


@pytest.fixture(scope="module")
def endpoint(server: RunningServer) -> sgl.RuntimeEndpoint:
    return sgl.RuntimeEndpoint(server.url)


@pytest.fixture(scope="module")
def llm() -> Iterator[LLM]:
    with LLM("null") as llm:
        yield llm


@sgl.function
def everything(s: Any, text: str) -> None:
    s += sgl.system("Be <|im_end|> kind.")
    s += sgl.user(text)
    s += sgl.assistant("So: " + sgl.gen("a", max_tokens=12, **GREEDY))
    forks = s.fork(3)
    forks += lambda index: sgl.user(f"tip {index}") + sgl.assistant(sgl.gen("tip", max_tokens=8, stop=["e"], **GREEDY))
    forks.join()
    s += "Raw " + sgl.gen("many", max_tokens=5, n=2, temperature=0, ignore_eos=True, return_logprob=True)


@sgl.function
def choose(s: Any, method: Any) -> None:
    s += "The sea is wide and the forest is " + sgl.select("x", ["green", "black wood", "gone"], choices_method=method)


def number_running(server: RunningServer) -> int:
    return int(server.client.get("/server_info").json()["internal_states"][0]["num_running"])


def test_a_server_gives_what_the_engine_gives(endpoint: sgl.RuntimeEndpoint, llm: LLM) -> None:
    remote, local = everything.run("why?", backend=endpoint), everything.run("why?", backend=llm)
    assert remote.error() is None
    assert remote.text() == local.text() and remote.messages() == local.messages()
    assert remote["tip"] == local["tip"] and remote["many"] == local["many"]
    assert len(remote.get_meta_info("many")[0]["output_token_logprobs"]) == 5


def test_streams_add_up(endpoint: sgl.RuntimeEndpoint) -> None:
    state = everything.run("why?", backend=endpoint, stream=True)
    pieces = list(state.text_iter())
    assert "".join(pieces) == state.text() and len(pieces) > 3  # how many updates are sent together depends on the machine
    assert "".join(state.text_iter("a")) == state["a"]


@pytest.mark.parametrize("method", METHODS)
def test_choices_are_scored_alike(endpoint: sgl.RuntimeEndpoint, llm: LLM, method: Any) -> None:
    remote, local = choose.run(method, backend=endpoint), choose.run(method, backend=llm)
    assert remote["x"] == local["x"]
    theirs, ours = remote.get_meta_info("x"), local.get_meta_info("x")
    assert theirs["input_token_logprobs"] == ours["input_token_logprobs"]
    assert theirs["choice_probabilities"] == pytest.approx(ours["choice_probabilities"])


def test_a_batch_finds_its_prefix(endpoint: sgl.RuntimeEndpoint) -> None:
    @sgl.function
    def ask(s: Any, text: str) -> None:
        s += "a long beginning that all of them share, " * 8
        s += text + sgl.gen("x", max_tokens=4)

    assert endpoint.flush_cache() is True
    states = ask.run_batch([(str(n),) for n in range(8)], backend=endpoint)
    assert min(state.get_meta_info("x")["cached_tokens"] for state in states) > 300


def test_cancelling_frees_the_servers_requests(server: RunningServer, endpoint: sgl.RuntimeEndpoint) -> None:
    @sgl.function
    def long(s: Any) -> None:
        forks = s.fork(4)
        forks += "x" + sgl.gen("x", max_tokens=3900, **GREEDY)
        forks.join()

    for options in ({}, {"n": 2}):
        state = long.run(backend=endpoint, stream=True, **options)
        wait_until(lambda: number_running(server) >= 4, 20, "running")
        state.cancel()
        assert isinstance(state.error(), Aborted)
        wait_until(lambda: number_running(server) == 0, 20, "freed")


def test_errors_are_ours(endpoint: sgl.RuntimeEndpoint) -> None:
    state = talk.run("why?", backend=endpoint, top_p=5.0)
    assert isinstance(state.error(), InvalidRequest) and "top_p" in str(state.error())
    nobody = choose.run(METHODS[0], backend=sgl.RuntimeEndpoint("http://127.0.0.1:9", chat_template_name="default"))
    assert isinstance(nobody.error(), Unavailable)
    assert sgl.get_server_info(endpoint)["status"] == "ready"  # type: ignore[index]


@sgl.function
def talk(s: Any, text: str) -> None:
    s += sgl.system("Be kind.")
    s += sgl.user(text)
    s += sgl.assistant(sgl.gen("a", max_tokens=12, temperature=0))


def backends(server: RunningServer) -> dict[str, Any]:
    common = {"api_key": "none", "max_retries": 0}
    return {
        "openai": sgl.OpenAI("null", base_url=f"{server.url}/v1", **common),
        "anthropic": sgl.Anthropic("null", base_url=server.url, **common),
    }


@pytest.mark.parametrize("name", ["openai", "anthropic"])
def test_chat_apis_answer_as_the_engine_does(server: RunningServer, llm: LLM, name: str) -> None:
    backend = backends(server)[name]
    expected = talk.run("why?", backend=llm)["a"]
    state = talk.run("why?", backend=backend)
    assert state["a"] == expected and state.get_meta_info("a")["completion_tokens"] > 5
    streamed = talk.run("why?", backend=backend, stream=True)
    assert "".join(streamed.text_iter("a")) == expected
    assert isinstance(choose.run(METHODS[0], backend=backend).error(), InvalidRequest)


def test_openai_completions_continue_text_and_score_choices(server: RunningServer, llm: LLM) -> None:
    backend = sgl.OpenAI("null", is_chat_model=False, base_url=f"{server.url}/v1", api_key="none")
    assert sgl.get_server_info(backend) == {"models": ["null"]}

    @sgl.function
    def program(s: Any) -> None:
        s += "Once " + sgl.gen("a", max_tokens=9, temperature=0, stop="zz") + "."

    assert program.run(backend=backend).text() == program.run(backend=llm).text()
    remote, local = choose.run(METHODS[0], backend=backend), choose.run(METHODS[0], backend=llm)
    assert remote["x"] == local["x"]
    assert remote.get_meta_info("x")["choice_logprobs"] == pytest.approx(local.get_meta_info("x")["choice_logprobs"])
    assert isinstance(choose.run(METHODS[2], backend=backend).error(), InvalidRequest)


def test_a_chat_api_that_goes_on_with_messages(server: RunningServer, llm: LLM) -> None:
    @sgl.function
    def program(s: Any) -> None:
        s += sgl.user("why?")
        s += sgl.assistant("Well, " + sgl.gen("a", max_tokens=9, temperature=0))

    backend = sgl.OpenAI("null", base_url=f"{server.url}/v1", api_key="none", continues_messages=True)
    assert program.run(backend=backend)["a"] == program.run(backend=llm)["a"]
    refused = program.run(backend=sgl.OpenAI("null", base_url=f"{server.url}/v1", api_key="none"))
    assert isinstance(refused.error(), InvalidRequest) and "num_api_spec_tokens" in str(refused.error())


def test_the_example_of_speculative_calls(
    server: RunningServer, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["speculative_calls.py", f"{server.url}/v1"])
    runpy.run_path(str(Path(__file__).parents[2] / "examples" / "speculative_calls.py"), run_name="__main__")
    assert "3 generations" in capsys.readouterr().out


@sgl.function
def go_on(s: Any, text: str) -> None:
    s += text + sgl.gen("x", max_tokens=8, temperature=0)


@sgl.function
def colour(s: Any, method: Any) -> None:
    s += "The colour of grass is " + sgl.select("x", ["green", "blue", "a mystery"], choices_method=method)


@pytest.mark.real_model
def test_borders_are_healed_and_choices_scored_as_in_this_process(tmp_path: Path) -> None:
    model = "smollm2-135m-instruct"
    with serving(tmp_path, model, "--context-length", "512") as server, LLM(model, context_length=512) as llm:
        endpoint = sgl.RuntimeEndpoint(server.url)
        for text in ("The capital of France is ", "Once upon a ti", "The end.\n"):
            remote, local = go_on.run(text, backend=endpoint), go_on.run(text, backend=llm)
            assert remote.text() == local.text()
            assert remote.get_meta_info("x").get("healed") == local.get_meta_info("x").get("healed")
        text = "The capital of France is "
        healed = go_on.run(text, backend=endpoint)
        assert healed.get_meta_info("x")["healed"] and healed.get_meta_info("x")["completion_tokens"] == 7
        assert "".join(go_on.run(text, backend=endpoint, stream=True).text_iter("x")) == healed["x"]
        unhealed = go_on.run(text, backend=sgl.RuntimeEndpoint(server.url, token_healing=False))
        assert unhealed.text() != healed.text() and "healed" not in unhealed.get_meta_info("x")
        for method in METHODS:
            remote, local = colour.run(method, backend=endpoint), colour.run(method, backend=llm)
            theirs, ours = remote.get_meta_info("x"), local.get_meta_info("x")
            assert theirs["choice_probabilities"] == pytest.approx(ours["choice_probabilities"], abs=1e-6)
