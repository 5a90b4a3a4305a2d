"""`/generate` as SGLang defines it: shapes, streams, batches, log-probabilities."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest
from serverkit import SCRIPT, FakeBackend, ask, make_house

from sapwood.messages.types import Submit, unpack_ids


def post(body: dict[str, Any], **settings: Any) -> httpx.Response:
    return ask(make_house(**settings), "POST", "/generate", json=body)


def events_of(response: httpx.Response) -> list[dict[str, Any]]:
    """The JSON events of a stream; checks the framing on the way."""
    assert response.status_code == 200, response.text
    assert response.headers["content-type"].startswith("text/event-stream")
    assert response.text.endswith("data: [DONE]\n\n")
    blocks = response.text.split("\n\n")[:-1]
    assert all(block.startswith("data: ") and "\n" not in block for block in blocks)
    return [json.loads(block[6:]) for block in blocks[:-1]]


def test_single_answer_has_text_ids_and_meta_info() -> None:
    answer = post({"text": "abc", "sampling_params": {"max_new_tokens": 5}, "rid": "mine"}).json()
    meta = answer["meta_info"]
    assert answer["text"] == SCRIPT[:5]
    assert answer["output_ids"] == list(SCRIPT[:5].encode())
    assert meta["id"] == "mine"
    assert meta["finish_reason"] == {"type": "length", "length": 5}
    assert (meta["prompt_tokens"], meta["completion_tokens"], meta["cached_tokens"]) == (3, 5, 2)
    assert meta["e2e_latency"] >= 0.0
    assert "output_token_logprobs" not in meta and "index" not in answer


def test_default_length_is_sglangs_and_null_means_the_context() -> None:
    assert post({"text": "abc"}).json()["meta_info"]["completion_tokens"] == 128
    assert post({"text": "abc", "sampling_params": {"max_new_tokens": None}}).json()["meta_info"]["completion_tokens"] == 256 - 3
    assert post({"input_ids": [1] * 250}).json()["meta_info"]["completion_tokens"] == 6


def test_ids_and_batch_and_samples_keep_their_order() -> None:
    house = make_house()
    answers = ask(
        house,
        "POST",
        "/generate",
        json={"input_ids": [[1, 2], [3]], "sampling_params": {"max_new_tokens": 2, "n": 2}, "rid": "b"},
    ).json()
    assert [answer["meta_info"]["id"] for answer in answers] == ["b_0_0", "b_0_1", "b_1_0", "b_1_1"]
    submits = house.backend.sent_of(Submit)
    assert [list(unpack_ids(submit.token_ids)) for submit in submits] == [[1, 2], [1, 2], [3], [3]]
    assert [submit.sample_index for submit in submits] == [0, 1, 0, 1]
    assert submits[0].group == submits[1].group != submits[2].group
    assert all(submit.params.n == 1 and submit.params.seed is not None for submit in submits)
    assert submits[0].params.seed == submits[1].params.seed


def test_batch_of_one_is_a_list_and_parameters_may_differ() -> None:
    assert isinstance(post({"text": ["abc"], "sampling_params": {"max_new_tokens": 1}}).json(), list)
    answers = post({"text": ["a", "b"], "sampling_params": [{"max_new_tokens": 1}, {"max_new_tokens": 3}]}).json()
    assert [len(answer["output_ids"]) for answer in answers] == [1, 3]


def test_stream_is_cumulative_by_default() -> None:
    events = events_of(post({"text": "abc", "stream": True, "sampling_params": {"max_new_tokens": 12}}))
    assert [event["text"] for event in events][-1] == SCRIPT.encode()[:12].decode()
    for earlier, later in zip(events, events[1:], strict=False):
        assert later["text"].startswith(earlier["text"])
        assert later["output_ids"][: len(earlier["output_ids"])] == earlier["output_ids"]
    assert all(event["meta_info"]["finish_reason"] is None for event in events[:-1])
    assert events[-1]["meta_info"]["finish_reason"] == {"type": "length", "length": 12}
    assert all("index" not in event for event in events)


def test_incremental_stream_is_disjoint() -> None:
    events = events_of(
        post({"text": "abc", "stream": True, "sampling_params": {"max_new_tokens": 12}}, incremental_streaming_output=True)
    )
    assert "".join(event["text"] for event in events) == SCRIPT.encode()[:12].decode()
    assert sum((event["output_ids"] for event in events), []) == list(SCRIPT.encode()[:12])
    assert events[-1]["meta_info"]["completion_tokens"] == 12


def test_batched_stream_events_carry_an_index() -> None:
    events = events_of(post({"text": ["a", "b"], "stream": True, "sampling_params": {"max_new_tokens": 3, "n": 2}}))
    last = {event["index"]: event for event in events}
    assert sorted(last) == [0, 1, 2, 3]
    assert all(event["meta_info"]["finish_reason"]["type"] == "length" for event in last.values())


def test_stream_interval_merges_tokens() -> None:
    body = {"text": "abc", "stream": True, "sampling_params": {"max_new_tokens": 12, "stream_interval": 5}}
    events = events_of(ask(make_house(FakeBackend(step_s=0.002)), "POST", "/generate", json=body))
    assert [len(event["output_ids"]) for event in events] == [1, 6, 11, 12]


def test_stop_string_and_stop_id_are_reported() -> None:
    house = make_house()
    answer = ask(house, "POST", "/generate", json={"text": "abc", "sampling_params": {"stop": "lo"}}).json()
    assert answer["meta_info"]["finish_reason"] == {"type": "stop", "matched": "lo"}
    assert answer["meta_info"]["completion_tokens"] == 5
    assert [type(message).__name__ for message in house.backend.sent] == ["Submit", "Stop"]
    assert house.backend.sent[1].num_tokens == 5
    answer = post({"text": "abc", "sampling_params": {"stop_token_ids": [ord(",")]}}).json()
    assert answer["meta_info"]["finish_reason"] == {"type": "stop", "matched": 44}
    assert answer["text"] == "Hello"


def test_prompt_only_request_makes_nothing() -> None:
    answer = post({"text": "abc", "sampling_params": {"max_new_tokens": 0}}).json()
    assert answer["output_ids"] == [] and answer["text"] == ""
    assert answer["meta_info"]["finish_reason"] == {"type": "length", "length": 0}


def test_logprobs_of_prompt_and_output() -> None:
    meta = post(
        {
            "input_ids": [65, 66, 67], "return_logprob": True, "logprob_start_len": 0, "top_logprobs_num": 2,
            "token_ids_logprob": [5, 6], "return_text_in_logprobs": True, "sampling_params": {"max_new_tokens": 2},
        }
    ).json()["meta_info"]  # fmt: skip
    assert meta["input_token_logprobs"] == [[None, 65, "A"], [-0.25, 66, "B"], [-0.25, 67, "C"]]
    assert meta["output_token_logprobs"] == [[-0.25, 72, "H"], [-0.25, 101, "e"]]
    assert meta["output_token_logprobs_length"] == 2
    assert meta["input_top_logprobs"] == [None, [[-0.25, 66, "B"], [-1.25, 67, "C"]], [[-0.25, 67, "C"], [-1.25, 68, "D"]]]
    assert meta["output_top_logprobs"][0] == [[-0.25, 72, "H"], [-1.25, 73, "I"]]
    assert meta["input_token_ids_logprobs"][0] is None
    assert meta["output_token_ids_logprobs"][1] == [[-9.0, 5, "\x05"], [-9.0, 6, "\x06"]]


def test_logprobs_by_default_cover_the_output_alone_and_a_later_start_hides_its_first_value() -> None:
    meta = post({"input_ids": [65, 66], "return_logprob": True, "sampling_params": {"max_new_tokens": 1}}).json()["meta_info"]
    assert meta["input_token_logprobs"] == []
    assert meta["output_token_logprobs"] == [[-0.25, 72, None]]
    body = {"input_ids": [65, 66, 67], "return_logprob": True, "logprob_start_len": 1, "sampling_params": {"max_new_tokens": 1}}
    assert post(body).json()["meta_info"]["input_token_logprobs"] == [[None, 66, None], [-0.25, 67, None]]


@pytest.mark.parametrize("incremental", [False, True])
def test_streamed_logprobs_match_the_ids(incremental: bool) -> None:
    body = {
        "input_ids": [65, 66],
        "return_logprob": True,
        "logprob_start_len": 0,
        "stream": True,
        "sampling_params": {"max_new_tokens": 4},
    }
    events = events_of(post(body, incremental_streaming_output=incremental))
    for event in events:
        assert [entry[1] for entry in event["meta_info"]["output_token_logprobs"]] == event["output_ids"]
    assert len(events[0]["meta_info"]["input_token_logprobs"]) == 2
    assert len(events[-1]["meta_info"]["input_token_logprobs"]) == (0 if incremental and len(events) > 1 else 2)


def test_special_texts_are_parsed_unless_told_not_to() -> None:
    house = make_house()
    ask(house, "POST", "/generate", json={"text": "<|im_end|>", "sampling_params": {"max_new_tokens": 1}})
    ask(house, "POST", "/generate", json={"text": "<|im_end|>", "parse_special": False, "sampling_params": {"max_new_tokens": 1}})
    first, second = (list(unpack_ids(submit.token_ids)) for submit in house.backend.sent_of(Submit))
    assert first == [258]
    assert second == [*b"<|im_end|>"]


def test_cache_keys_become_namespaces_that_cannot_be_confused() -> None:
    house = make_house()
    for keys in ({"cache_salt": "a"}, {"extra_key": "a"}, {"cache_salt": "a", "extra_key": "b"}, {}):
        ask(house, "POST", "/generate", json={"text": "x", "priority": 3, "sampling_params": {"max_new_tokens": 1}, **keys})
    submits = house.backend.sent_of(Submit)
    assert len({submit.namespace for submit in submits}) == 4
    assert submits[3].namespace == "" and submits[0].priority == 3
