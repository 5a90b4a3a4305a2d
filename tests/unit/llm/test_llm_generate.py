"""`LLM` on the null model: whole results, what they hold, and what is refused."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from sapwood import LLM, ConfigError, EngineFailed, InvalidRequest, LogprobOptions, SamplingParams
from sapwood.offline import GenerationResult

GREEDY = SamplingParams(temperature=0.0, max_new_tokens=24, ignore_eos=True)
PROMPTS = ["The sea", "The sea is wide", "A forest", "Hello, hello"]


@pytest.fixture(scope="module")
def llm() -> Iterator[LLM]:
    with LLM("null", random_seed=1, context_length=256) as llm:
        yield llm


def but(params: SamplingParams, **changes: Any) -> SamplingParams:
    return msgspec.structs.replace(params, **changes)


def texts(results: list[GenerationResult]) -> list[str]:
    return [result.text for result in results]


def test_results_come_in_the_order_of_the_prompts(llm: LLM) -> None:
    lengths = [12, 3, 7, 1]
    results = llm.generate(PROMPTS, [but(GREEDY, max_new_tokens=length) for length in lengths])
    assert [result.index for result in results] == [0, 1, 2, 3]
    assert [len(result.token_ids) for result in results] == lengths
    assert {result.finish_reason for result in results} == {"length"}


def test_a_batch_gives_what_each_prompt_gives_alone(llm: LLM) -> None:
    assert texts(llm.generate(PROMPTS, GREEDY)) == [llm.generate(prompt, GREEDY)[0].text for prompt in PROMPTS]


def test_text_and_its_ids_are_the_same_prompt(llm: LLM) -> None:
    ids = list(b"The sea")
    assert llm.generate("The sea", GREEDY)[0].text == llm.generate(ids, GREEDY)[0].text == llm.generate([ids], GREEDY)[0].text
    assert llm.generate(ids, GREEDY)[0].num_prompt_tokens == len(ids)


def test_nothing_in_nothing_out(llm: LLM) -> None:
    assert llm.generate([], GREEDY) == []


def test_samples_of_one_prompt(llm: LLM) -> None:
    params = SamplingParams(n=3, seed=7, max_new_tokens=16, ignore_eos=True)
    results = llm.generate(["one", "two"], params)
    assert [(result.index, result.sample_index) for result in results] == [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (1, 2)]
    assert len(set(texts(results[:3]))) == 3, "samples differ"
    assert texts(llm.generate(["one", "two"], params)) == texts(results), "a seed repeats them"


def test_unseeded_samples_follow_the_random_seed_of_the_llm() -> None:
    params = SamplingParams(max_new_tokens=16, ignore_eos=True)
    runs = []
    for seed in (3, 3, 4):
        with LLM("null", random_seed=seed) as llm:
            runs.append(texts(llm.generate(["x", "x"], params)))
    assert runs[0] == runs[1] != runs[2]
    assert runs[0][0] != runs[0][1], "two requests draw two seeds"


def test_stop_strings_end_a_request_and_are_trimmed(llm: LLM) -> None:
    whole = llm.generate("stop me", GREEDY)[0].text
    stop = whole[8:11]
    (result,) = llm.generate("stop me", but(GREEDY, stop=(stop,)))
    assert (result.finish_reason, result.matched) == ("stop", stop)
    assert result.text == whole[: whole.index(stop)]
    assert len(result.token_ids) < 24
    assert llm.generate("stop me", but(GREEDY, stop=(stop,), no_stop_trim=True))[0].text == whole[: whole.index(stop) + 3]


def test_stop_ids_end_a_request(llm: LLM) -> None:
    ids = llm.generate("stop me", GREEDY)[0].token_ids
    (result,) = llm.generate("stop me", but(GREEDY, ignore_eos=False, stop_token_ids=(ids[5],)))
    assert result.finish_reason == "stop" and result.matched == ids[5]


def test_the_second_time_the_prompt_is_cached_until_the_cache_is_flushed(llm: LLM) -> None:
    prompt = "x" * 100
    llm.flush_cache()
    assert llm.generate(prompt, GREEDY)[0].num_cached_tokens == 0
    again = llm.generate(prompt, GREEDY)[0].num_cached_tokens
    assert 64 <= again < 100
    llm.flush_cache()
    assert llm.generate(prompt, GREEDY)[0].num_cached_tokens == 0


def test_logprobs(llm: LLM) -> None:
    (plain,) = llm.generate("The sea", GREEDY)
    assert plain.logprobs is None and plain.prompt_logprobs is None
    (result,) = llm.generate("The sea", GREEDY, logprobs=LogprobOptions(output=True, top_n=2, prompt_start=0))
    assert result.logprobs is not None and result.prompt_logprobs is not None
    assert [entry.token_id for entry in result.logprobs] == result.token_ids == plain.token_ids
    assert all(entry.top_ids[0] == entry.token_id for entry in result.logprobs), "greedy takes the likeliest"
    assert [entry.token_id for entry in result.prompt_logprobs] == list(b"The sea")


def test_chat_renders_the_template(llm: LLM) -> None:
    assert llm.has_chat_template
    conversation = [{"role": "user", "content": "hi"}]
    (result,) = llm.chat(conversation, GREEDY)
    rendered = "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
    assert result.text == llm.generate(rendered, GREEDY)[0].text
    assert texts(llm.chat([conversation, conversation], GREEDY)) == [result.text] * 2


def test_control_tokens_in_a_message_stay_text(llm: LLM) -> None:
    (look_alike,) = llm.chat([{"role": "user", "content": "<|im_end|>"}], GREEDY)
    (plain,) = llm.chat([{"role": "user", "content": "x"}], GREEDY)
    assert look_alike.num_prompt_tokens == plain.num_prompt_tokens + len("<|im_end|>") - 1


def test_the_default_length_is_clamped_and_an_explicit_one_refused(llm: LLM) -> None:
    ids = [97] * 250
    assert len(llm.generate(ids, SamplingParams(ignore_eos=True))[0].token_ids) == 6
    assert len(llm.generate(ids, SamplingParams(ignore_eos=True, max_new_tokens=None))[0].token_ids) == 6
    with pytest.raises(InvalidRequest, match="room for 6"):
        llm.generate(ids, SamplingParams(max_new_tokens=7))


@pytest.mark.parametrize(
    ("prompts", "params", "param"),
    [
        ("", GREEDY, "prompt"),
        ([[97], [97] * 300], GREEDY, "prompt"),
        ([[97, 100_000]], GREEDY, "prompt"),
        ([["a", "b"]], GREEDY, "prompts"),
        ([1.5], GREEDY, "prompts"),
        ("x", SamplingParams(temperature=float("nan")), "temperature"),
        ("x", SamplingParams(max_new_tokens=-1), "max_new_tokens"),
        ("x", SamplingParams(stop_regex=("(",)), "stop_regex"),
        (["x", "y"], [GREEDY], "params"),
    ],
)
def test_mistakes_are_named_before_anything_runs(llm: LLM, prompts: Any, params: Any, param: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        llm.generate(prompts, params)
    assert caught.value.param == param
    assert texts(llm.generate("The sea", GREEDY)), "the LLM goes on"


@pytest.mark.parametrize("messages", [[], [{"content": "x"}], [{"role": "user", "content": 3}]])
def test_bad_messages_are_refused(llm: LLM, messages: Any) -> None:
    with pytest.raises(InvalidRequest):
        llm.chat(messages, GREEDY)


def test_options_are_checked() -> None:
    with pytest.raises(ConfigError, match="did you mean page_size"):
        LLM("null", page_sise=1)
    with pytest.raises(ConfigError, match="option of the server"):
        LLM("null", port=8000)
    with pytest.raises(ConfigError, match="cannot read|readable"):
        LLM("null", chat_template="no-such-file.jinja")


def test_the_environment_counts_but_keywords_win(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SAPWOOD_CONTEXT_LENGTH", "100")
    monkeypatch.setenv("SAPWOOD_PAGE_SIZE", "4")
    monkeypatch.setenv("SAPWOOD_PORT", "1")
    with LLM("null", page_size=8) as llm:
        assert (llm.config.model.context_length, llm.config.engine.page_size, llm.config.server.port) == (100, 8, 30000)


def test_a_closed_llm_says_so() -> None:
    llm = LLM("null")
    llm.close()
    llm.close()
    with pytest.raises(EngineFailed, match="closed"):
        llm.generate("x")


def test_prompts_are_fed_in_portions_and_progress_is_told() -> None:
    told: list[tuple[str, int, int]] = []
    held: list[int] = []
    with LLM("null", max_running_requests=2) as llm:

        def note(task: str, done: int, total: int) -> None:
            told.append((task, done, total))
            held.append(len(llm._desk._open))

        results = llm.generate([[97 + i % 26] * 4 for i in range(60)], GREEDY, progress=note)
    assert len(results) == 60
    assert told[-1] == ("generating", 60, 60) and [done for _, done, _ in told] == sorted(done for _, done, _ in told)
    assert max(held) == 4


@pytest.mark.parametrize("options", [{"disable_overlap_schedule": True}, {"page_size": 1}, {"chunked_prefill_size": 16}])
def test_options_change_the_work_not_the_result(llm: LLM, options: dict[str, Any]) -> None:
    with LLM("null", context_length=256, **options) as other:
        assert texts(other.generate(PROMPTS, GREEDY)) == texts(llm.generate(PROMPTS, GREEDY))
