"""The OpenAI dialect: shapes, streams as clients read them, log-probabilities as evaluators read them."""

from __future__ import annotations

import json
from typing import Any

import httpx
import openai
import pytest
from serverkit import SCRIPT, FakeBackend, ask, make_house, real_server

from sapwood.messages.types import Submit, unpack_ids

CHAT = {"model": "fake", "messages": [{"role": "user", "content": "hi"}]}


def events_of(response: httpx.Response) -> list[dict[str, Any]]:
    assert response.status_code == 200, response.text
    assert response.headers["content-type"].startswith("text/event-stream")
    assert response.text.endswith("\n\ndata: [DONE]\n\n")
    blocks = response.text.split("\n\n")[:-2]
    assert all(block.startswith("data: ") and "\n" not in block for block in blocks)
    return [json.loads(block[6:]) for block in blocks]


def chat(**fields: Any) -> httpx.Response:
    return ask(make_house(), "POST", "/v1/chat/completions", json={**CHAT, **fields})


def complete(**fields: Any) -> httpx.Response:
    return ask(make_house(), "POST", "/v1/completions", json={"model": "fake", "prompt": "abc", **fields})


def test_whole_chat_answer() -> None:
    answer = chat(max_tokens=5).json()
    assert answer["object"] == "chat.completion" and answer["id"].startswith("chatcmpl-") and answer["model"] == "fake"
    (choice,) = answer["choices"]
    assert choice["message"] == {"content": "Hello", "role": "assistant"}
    assert choice["finish_reason"] == "length" and choice["logprobs"] is None and choice["matched_stop"] is None
    prompt = len("<user\nhi>\n<assistant\n")
    assert answer["usage"] == {
        "prompt_tokens": prompt, "completion_tokens": 5, "total_tokens": prompt + 5,
        "prompt_tokens_details": {"cached_tokens": 3}, "completion_tokens_details": {"reasoning_tokens": 0},
    }  # fmt: skip


def test_chat_length_defaults_to_the_context_and_the_newer_name_wins() -> None:
    answer = chat().json()
    assert answer["usage"]["total_tokens"] == 256
    assert chat(max_tokens=9, max_completion_tokens=2).json()["usage"]["completion_tokens"] == 2


def test_chat_stream_role_comes_with_the_first_text_then_finish_then_done() -> None:
    events = events_of(chat(max_tokens=5, stream=True))
    deltas = [event["choices"][0]["delta"] for event in events]
    assert deltas[0]["role"] == "assistant" and deltas[0]["content"]
    assert all("role" not in delta for delta in deltas[1:])
    assert "".join(delta.get("content", "") for delta in deltas) == "Hello"
    assert deltas[-1] == {} and events[-1]["choices"][0]["finish_reason"] == "length"
    assert all(event["choices"][0]["finish_reason"] is None for event in events[:-1])
    assert all(event["object"] == "chat.completion.chunk" and "usage" not in event for event in events)
    assert len({event["id"] for event in events}) == 1


def test_usage_chunk_comes_only_when_asked_for() -> None:
    events = events_of(chat(max_tokens=3, stream=True, stream_options={"include_usage": True}))
    assert events[-1]["choices"] == [] and events[-1]["usage"]["completion_tokens"] == 3
    assert all(event["usage"] is None for event in events[:-1])
    events = events_of(
        chat(max_tokens=3, stream=True, stream_options={"include_usage": True, "continuous_usage_stats": True, "unknown": 1})
    )
    counts = [event["usage"]["completion_tokens"] for event in events]
    assert counts == sorted(counts) and counts[-1] == 3 and events[-1]["choices"] == []


def test_chat_samples_stream_side_by_side() -> None:
    events = events_of(chat(max_tokens=4, n=3, stream=True))
    texts = ["", "", ""]
    for event in events:
        choice = event["choices"][0]
        texts[choice["index"]] += choice["delta"].get("content", "")
    assert texts == ["Hell"] * 3
    assert sum(event["choices"][0]["finish_reason"] == "length" for event in events) == 3
    usage = chat(max_tokens=4, n=3).json()["usage"]
    assert usage["completion_tokens"] == 12 and usage["prompt_tokens"] == len("<user\nhi>\n<assistant\n")


def test_chat_content_never_becomes_control_tokens() -> None:
    house = make_house()
    body = {"messages": [{"role": "user", "content": [{"type": "text", "text": "<|im_end|>"}]}], "max_tokens": 1}
    assert ask(house, "POST", "/v1/chat/completions", json=body).status_code == 200
    ids = list(unpack_ids(house.backend.sent_of(Submit)[0].token_ids))
    assert ids == [257, *b"user\n<|im_end|>", 258, *b"\n", 257, *b"assistant\n"]


def test_chat_prompts_can_be_continued_and_the_developer_is_the_system() -> None:
    house = make_house()
    messages = [{"role": "developer", "content": "be"}, {"role": "assistant", "content": "so"}]
    for options in ({"continue_final_message": True}, {"add_generation_prompt": False, "chat_template_kwargs": {"unknown": 1}}):
        body = {"messages": messages, "max_tokens": 1, **options}
        assert ask(house, "POST", "/v1/chat/completions", json=body).status_code == 200
    first, second = (list(unpack_ids(submit.token_ids)) for submit in house.backend.sent_of(Submit))
    assert first == [257, *b"system\nbe", 258, *b"\n", 257, *b"assistant\nso"]
    assert second == [*first, 258, *b"\n"]


def test_chat_logprobs_whole_and_streamed() -> None:
    content = chat(max_tokens=9, logprobs=True, top_logprobs=2).json()["choices"][0]["logprobs"]["content"]
    assert content[0] == {
        "token": "H", "logprob": -0.25, "bytes": [72],
        "top_logprobs": [{"token": "H", "logprob": -0.25, "bytes": [72]}, {"token": "I", "logprob": -1.25, "bytes": [73]}],
    }  # fmt: skip
    streamed = [
        entry
        for event in events_of(chat(max_tokens=9, logprobs=True, top_logprobs=2, stream=True))
        for entry in (event["choices"][0]["logprobs"] or {"content": []})["content"]
    ]
    assert streamed == content and len(content) == 9


def test_whole_completion_and_its_defaults() -> None:
    answer = complete().json()
    assert answer["object"] == "text_completion" and answer["id"].startswith("cmpl-")
    (choice,) = answer["choices"]
    assert choice["text"] == SCRIPT.encode()[:16].decode() and choice["finish_reason"] == "length"
    assert answer["usage"]["completion_tokens"] == 16 and answer["usage"]["prompt_tokens_details"] == {"cached_tokens": 2}


@pytest.mark.parametrize(
    ("prompt", "ids"),
    [
        ("ab", [[97, 98]]),
        (["ab", "c"], [[97, 98], [99]]),
        ([5, 6], [[5, 6]]),
        ([[5, 6], [7]], [[5, 6], [7]]),
    ],
)
def test_every_form_of_prompt(prompt: Any, ids: list[list[int]]) -> None:
    house = make_house()
    answer = ask(house, "POST", "/v1/completions", json={"prompt": prompt, "max_tokens": 1}).json()
    assert [list(unpack_ids(submit.token_ids)) for submit in house.backend.sent_of(Submit)] == ids
    assert [choice["index"] for choice in answer["choices"]] == list(range(len(ids)))


def test_completion_stream_with_echo_and_usage() -> None:
    events = events_of(complete(max_tokens=10, stream=True, echo=True, stream_options={"include_usage": True}))
    assert "".join(event["choices"][0]["text"] for event in events[:-1]) == "abc" + SCRIPT.encode()[:10].decode()
    assert events[-2]["choices"][0]["finish_reason"] == "length"
    assert events[-1]["usage"]["completion_tokens"] == 10


def test_loglikelihood_as_lm_eval_asks_for_it() -> None:
    prompts = [[65, 66, 67], [70, 71]]
    body = {"prompt": prompts, "max_tokens": 1, "logprobs": 1, "echo": True, "temperature": 0, "seed": 1234}
    answer = ask(make_house(), "POST", "/v1/completions", json=body).json()
    for prompt, choice in zip(prompts, sorted(answer["choices"], key=lambda choice: choice["index"]), strict=True):
        logprobs = choice["logprobs"]
        assert len(logprobs["token_logprobs"]) == len(logprobs["top_logprobs"]) == len(logprobs["tokens"]) == len(prompt) + 1
        assert logprobs["token_logprobs"][0] is None and logprobs["top_logprobs"][0] is None
        assert logprobs["tokens"][:-1] == [chr(token_id) for token_id in prompt]
        for value, candidates in zip(logprobs["token_logprobs"][1:], logprobs["top_logprobs"][1:], strict=True):
            assert value == max(candidates.values())
        assert logprobs["text_offset"] == list(range(len(prompt) + 1))
        assert choice["text"] == "".join(map(chr, prompt)) + "H"


def test_scoring_without_a_completion() -> None:
    choice = complete(prompt=[65, 66], max_tokens=0, logprobs=1, echo=True).json()["choices"][0]
    assert choice["text"] == "AB" and choice["logprobs"]["token_logprobs"] == [None, -0.25]


def test_candidates_with_the_same_text_are_all_kept() -> None:
    house = make_house(FakeBackend(script="é"))
    choice = ask(house, "POST", "/v1/completions", json={"prompt": "a", "max_tokens": 1, "logprobs": 3}).json()["choices"][0]
    (candidates,) = choice["logprobs"]["top_logprobs"]
    assert len(candidates) == 3 and max(candidates.values()) == choice["logprobs"]["token_logprobs"][0]


def test_sampling_fields_reach_the_worker() -> None:
    house = make_house()
    body = {
        **CHAT, "max_tokens": 3, "temperature": 0.5, "top_p": 0.9, "top_k": 7, "min_p": 0.1, "frequency_penalty": 0.2,
        "presence_penalty": 0.3, "repetition_penalty": 1.1, "logit_bias": {"5": -2}, "seed": 11, "stop": ["x", "y"],
        "stop_token_ids": [9], "stop_regex": "z+", "min_tokens": 2, "ignore_eos": True, "no_stop_trim": True,
        "skip_special_tokens": False, "cache_salt": "s", "priority": 2, "user": "me", "metadata": {"a": "b"}, "store": False,
        "service_tier": "auto", "parallel_tool_calls": True, "response_format": {"type": "text"}, "tool_choice": "none",
        "tools": [], "reasoning_effort": "low", "best_of": 1, "top_logprobs": None, "stream_options": None,
    }  # fmt: skip
    assert ask(house, "POST", "/v1/chat/completions", json=body).status_code == 200
    (submit,) = house.backend.sent_of(Submit)
    params = submit.params
    assert (params.max_new_tokens, params.min_new_tokens, params.temperature, params.top_p, params.top_k) == (3, 2, 0.5, 0.9, 7)
    assert (params.min_p, params.frequency_penalty, params.presence_penalty, params.repetition_penalty) == (0.1, 0.2, 0.3, 1.1)
    assert params.logit_bias == {5: -2.0} and params.seed == 11 and params.stop == ("x", "y") and params.stop_regex == ("z+",)
    assert params.stop_token_ids == (9,) and params.ignore_eos and params.no_stop_trim and not params.skip_special_tokens
    assert submit.priority == 2 and submit.namespace != ""


def test_models_are_listed_and_found() -> None:
    house = make_house(is_ready=False)
    listed = ask(house, "GET", "/v1/models").json()
    assert listed["object"] == "list" and listed["data"][0]["id"] == "fake" and listed["data"][0]["object"] == "model"
    assert ask(house, "GET", "/v1/models/fake").json()["root"] == "/models/fake"
    assert ask(house, "GET", "/v1/models/fake-catalog").status_code == 200
    assert ask(house, "GET", "/v1/models/other").status_code == 404


@pytest.mark.parametrize("name", ["fake", "/models/fake", "fake-catalog", "", None])
def test_a_model_answers_to_its_names(name: str | None) -> None:
    assert chat(model=name, max_tokens=1).status_code == 200


def test_the_official_client() -> None:
    with real_server(make_house()) as url:
        client = openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)
        assert client.models.list().data[0].id == "fake"
        whole = client.chat.completions.create(model="fake", messages=[{"role": "user", "content": "hi"}], max_tokens=8)
        assert whole.choices[0].message.content == SCRIPT.encode()[:8].decode()
        stream = client.chat.completions.create(
            model="fake",
            messages=[{"role": "user", "content": "hi"}],
            max_tokens=10,
            stream=True,
            stream_options={"include_usage": True},
        )
        chunks = list(stream)
        assert "".join(c.choices[0].delta.content or "" for c in chunks if c.choices) == SCRIPT.encode()[:10].decode()
        assert chunks[-1].usage is not None and chunks[-1].usage.completion_tokens == 10
        assert [c.choices[0].finish_reason for c in chunks if c.choices][-1] == "length"
        text = client.completions.create(model="fake", prompt="abc", max_tokens=4, logprobs=2, echo=True)
        assert text.choices[0].text == "abcHell" and text.choices[0].logprobs is not None
        with pytest.raises(openai.NotFoundError) as caught:
            client.chat.completions.create(model="nope", messages=[{"role": "user", "content": "hi"}])
        assert caught.value.code == "model_not_found" and caught.value.request_id
        with pytest.raises(openai.BadRequestError, match="max_tokens"):
            client.completions.create(model="fake", prompt="abc", max_tokens=10_000)
