"""Programs on an engine in this process: ids stay ids, roles are the model's, parameters are checked, logprobs are reported."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from typing import Any

import pytest

import sapwood.lang as sgl
from sapwood import LLM, Aborted, EngineFailed, InvalidRequest
from sapwood.lang.backends.local import LocalBackend
from sapwood.lang.settings import GenSettings
from sapwood.lang.transcript import Prompt, Run, Transcript

SCHEMA = '{"type": "object", "properties": {"ok": {"type": "boolean"}}, "required": ["ok"], "additionalProperties": false}'


@pytest.fixture(scope="module")
def llm() -> Iterator[LLM]:
    with LLM("null", random_seed=1, null_step_ms=0.05) as llm:
        yield llm


@sgl.function
def chat(s: Any, text: str) -> None:
    s += sgl.user(text)
    s += sgl.assistant(sgl.gen("a", max_tokens=20, temperature=0, ignore_eos=True))
    s += sgl.user("and?")
    s += sgl.assistant("Well, " + sgl.gen("b", max_tokens=20, temperature=0, ignore_eos=True))


def assert_idle(llm: LLM) -> None:
    assert llm._desk._open == {} and not llm._desk._worker.has_work


def test_roles_are_the_models_and_what_users_say_stays_text(llm: LLM) -> None:
    state = chat.run("<|im_end|>", backend=llm)
    assert state.text().startswith("<|im_start|>user\n<|im_end|><|im_end|>\n<|im_start|>assistant\n")
    prompt = Transcript(LocalBackend(llm).marks)
    prompt.begin("user")
    prompt.say("<|im_end|>")
    prompt.end("user")
    prompt.begin("assistant")
    conversation = [{"role": "user", "content": "<|im_end|>"}]
    assert LocalBackend(llm).ids(prompt.prompt()) == llm.prompts.chat_ids(conversation)


def test_everything_said_is_found_in_the_cache(llm: LLM) -> None:
    llm.flush_cache()
    state = chat.run("hello " * 10, backend=llm)
    first, second = state.get_meta_info("a"), state.get_meta_info("b")
    assert first["cached_tokens"] == 0
    assert second["cached_tokens"] >= first["prompt_tokens"] + first["completion_tokens"] - 1


def test_generated_text_keeps_its_ids() -> None:
    with LLM("null", random_seed=1) as llm:
        backend = LocalBackend(llm)
        prompt = Prompt((Run("abc", True),), (), None, "abc")
        [sample] = backend.generate(prompt, GenSettings(max_new_tokens=8, temperature=0.0, ignore_eos=True), None).future.result()
        assert bytes(sample.ids).decode() == sample.text and len(sample.ids) == 8
        [stopped] = backend.generate(
            prompt, GenSettings(max_new_tokens=8, temperature=0.0, stop=sample.text[3:5]), None
        ).future.result()
        assert stopped.text == sample.text[: sample.text.index(sample.text[3:5])] and bytes(stopped.ids).decode() == stopped.text


def test_parameters_are_checked_and_named(llm: LLM) -> None:
    state = chat.run("x", backend=llm, top_p=7.0)
    assert isinstance(state.error(), InvalidRequest) and state.error().param == "top_p"  # type: ignore[union-attr]
    with pytest.raises(InvalidRequest, match="chat_template_name"):
        _ = LocalBackend(llm, "no-such").marks


def test_log_probabilities_are_reported(llm: LLM) -> None:
    @sgl.function
    def program(s: Any) -> None:
        s += "abc" + sgl.gen("x", max_tokens=4, temperature=0, ignore_eos=True, return_logprob=True, top_logprobs_num=2)

    meta = program.run(backend=llm).get_meta_info("x")
    assert len(meta["output_token_logprobs"]) == 4 and len(meta["output_top_logprobs"][0]) == 2


def test_samples_stream_the_first(llm: LLM) -> None:
    @sgl.function
    def program(s: Any) -> None:
        s += "abc" + sgl.gen("x", max_tokens=10, n=3, ignore_eos=True)

    state = program.run(backend=llm, stream=True)
    assert "".join(state.text_iter("x")) == state["x"][0] and len(state["x"]) == 3
    assert state.text() == "abc" + state["x"][0]


def test_select_scores_all_choices_over_one_prefix(llm: LLM) -> None:
    @sgl.function
    def program(s: Any, method: Any) -> None:
        s += "the sea is wide and the forest is " + sgl.select("x", ["green", "black", "gone"], choices_method=method)

    llm.flush_cache()
    metas = {}
    for method in (sgl.token_length_normalized, sgl.greedy_token_selection, sgl.unconditional_likelihood_normalized):
        metas[method.name] = program.run(method, backend=llm).get_meta_info("x")
    assert len({tuple(meta["choice_logprobs"]) for meta in metas.values()}) == 1
    tokens = metas["token_length_normalized"]["input_token_logprobs"]
    assert ["".join(text for _, _, text in choice) for choice in tokens] == ["green", "black", "gone"]
    assert [len(c) for c in metas["unconditional_likelihood_normalized"]["unconditional_token_logprobs"]] == [5, 5, 4]


def test_forks_share_steps(llm: LLM) -> None:
    @sgl.function
    def program(s: Any) -> None:
        s += "a common beginning. "
        forks = s.fork(16)
        forks += lambda index: f"{index}: " + sgl.gen("x", max_tokens=40, ignore_eos=True)
        forks.join()

    before = llm._desk._num_turns
    assert len(program.run(backend=llm)["x"]) == 16
    assert llm._desk._num_turns - before < 120, "sixteen branches of forty tokens at once"
    assert_idle(llm)


def test_cancellation_frees_requests(llm: LLM) -> None:
    @sgl.function
    def program(s: Any) -> None:
        forks = s.fork(8)
        forks += "x" + sgl.gen("x", max_tokens=3000, ignore_eos=True)
        forks.join()

    state = program.run(backend=llm, stream=True)
    while not llm._desk._open:
        threading.Event().wait(0.001)
    state.cancel()
    assert isinstance(state.error(), Aborted)
    assert_idle(llm)


def test_a_closed_engine_fails_programs_instead_of_hanging() -> None:
    llm = LLM("null", null_step_ms=1)
    state = chat.run("x", backend=llm, stream=True, max_new_tokens=3000)
    next(iter(state.text_iter("a")))
    llm.close()
    assert isinstance(state.error(), EngineFailed)
    assert isinstance(chat.run("x", backend=llm).error(), EngineFailed)


def test_the_engine_says_what_it_is(llm: LLM) -> None:
    assert sgl.get_server_info(llm)["model"]["model_path"] == "null"  # type: ignore[index]
    assert sgl.flush_cache(llm) is True


def test_constrained_generations(llm: LLM) -> None:
    @sgl.function
    def program(s: Any) -> None:
        s += "a number: " + sgl.gen_int("int", max_tokens=6)
        s += " a word: " + sgl.gen("word", regex="(cat|dog)s?", max_tokens=8)
        s += " an object: " + sgl.gen("json", json_schema=SCHEMA, max_tokens=200)
        s += " a text: " + sgl.gen_string("text", max_tokens=200)

    state = program.run(backend=llm)
    assert state.error() is None
    int(state["int"])
    assert state["word"] in ("cat", "cats", "dog", "dogs")
    assert isinstance(json.loads(state["json"])["ok"], bool)
    assert state["text"].startswith('"')
    refused = sgl.function(lambda s: s.__iadd__("x" + sgl.gen("x", ebnf="no grammar"))).run(backend=llm)
    assert isinstance(refused.error(), InvalidRequest)
