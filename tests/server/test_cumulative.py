"""A cumulative stream has the bytes of answers that are made anew each time, and costs what is new in each."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sapwood.core.sampling import LogprobOptions, SamplingParams, TokenLogprobs
from sapwood.messages.types import Finish, TextEvent, TokenEvent
from sapwood.server.native.cumulative import Cumulative
from sapwood.server.native.reply import ReplyShape, reply
from sapwood.server.record import RequestRecord, Timings
from sapwood.server.requests import PromptRequest
from sapwood.server.sse import event

PROMPT = [3, 1, 2]
NUMBERS = st.floats(allow_nan=False, allow_infinity=False)


class CountingVocabulary:
    """Counts how many texts of tokens it was asked for."""

    def __init__(self) -> None:
        self.num_asked = 0

    def token_text(self, token_id: int) -> str:
        self.num_asked += 1
        return f'"{token_id}\n'


def record_of(options: LogprobOptions) -> RequestRecord:
    prompt = PromptRequest(rid="r", token_ids=PROMPT, params=SamplingParams(), logprobs=options)
    return RequestRecord(1, 1, 0, 0, "r", 1, prompt, SamplingParams(), Timings(1.0))


def entry(token_id: int, options: LogprobOptions, number: float = -0.5) -> TokenLogprobs:
    return TokenLogprobs(token_id, number, [token_id] * options.top_n, [number] * options.top_n, [-9.0] * len(options.token_ids))


def take(record: RequestRecord, ids: list[int], text: str, *, is_last: bool, number: float = -0.5) -> None:
    """One step's news."""
    options, index = record.prompt.logprobs, len(record.token_ids)
    wants_prompt = options.prompt_start is not None and not index
    news = TokenEvent(
        number=1,
        index=index,
        token_ids=ids,
        finish=Finish("length") if is_last else None,
        num_cached=2,
        logprobs=[entry(token_id, options, number) for token_id in ids] if options.output else None,
        prompt_logprobs=[entry(token_id, options) for token_id in PROMPT[options.prompt_start :]] if wants_prompt else None,
    )
    record.take(TextEvent(news, text, index + len(ids), False), 2.0 + index)


OPTIONS = st.builds(
    LogprobOptions,
    output=st.booleans(),
    top_n=st.integers(0, 2),
    token_ids=st.sampled_from([(), (7,)]),
    prompt_start=st.sampled_from([None, 0, 1]),
).filter(lambda options: options.output or options.prompt_start is None)
STEPS = st.lists(
    st.tuples(st.lists(st.integers(0, 250), max_size=3), st.text('aä"\\\n\x00𝄞', max_size=4), NUMBERS, st.booleans()), min_size=1
)


@settings(max_examples=150, deadline=None)
@given(options=OPTIONS, steps=STEPS, with_texts=st.booleans(), is_list=st.booleans())
def test_the_bytes_are_the_same(options: LogprobOptions, steps: list[Any], with_texts: bool, is_list: bool) -> None:
    """Whatever comes in a step, and whether the client hears of every step or of several together."""
    record = record_of(options)
    shape = ReplyShape(CountingVocabulary(), is_list, with_texts, with_prompt_ids=is_list)  # type: ignore[arg-type]
    cumulative = Cumulative(shape)
    for index, (ids, text, number, is_told) in enumerate(steps):
        is_last = index == len(steps) - 1
        take(record, ids, text, is_last=is_last, number=number)
        if is_told or is_last:
            update = record.deliver()
            assert event(cumulative.reply(update)) == event(reply(shape, update, incremental=False, in_stream=True))


@pytest.mark.parametrize("num_steps", [50, 100])
def test_what_was_said_is_not_made_again(num_steps: int) -> None:
    vocabulary, record = CountingVocabulary(), record_of(LogprobOptions(output=True, top_n=2))
    cumulative = Cumulative(ReplyShape(vocabulary, is_list=False, with_token_text=True))  # type: ignore[arg-type]
    for index in range(num_steps):
        take(record, [index], "x", is_last=index == num_steps - 1)
        cumulative.reply(record.deliver())
    assert 3 * num_steps <= vocabulary.num_asked <= 3 * (num_steps + 1), "a token and two candidates, perhaps twice for the first"
