"""Many requests at once: order, epochs, early and late news, losses; nothing that arrives makes it raise."""

from __future__ import annotations

from typing import Any

import hypothesis.strategies as st
import msgspec
from hypothesis import given, settings

from sapwood.core.sampling import SamplingParams, TokenLogprobs
from sapwood.detokenizer import detokenizer as module
from sapwood.detokenizer.detokenizer import Detokenizer
from sapwood.messages.types import Finish, Forget, StepEvents, StepStats, StepTexts, TextEvent, TokenEvent, Watch, pack_ids
from sapwood.tokenizer.byte_vocabulary import byte_tokenizer

TOKENIZER = byte_tokenizer()


def ids_of(text: str) -> list[int]:
    return TOKENIZER.encode(text, add_special=False, parse_special=True)


def event(number: int, index: int, text: str, finish: Finish | None = None, **fields: Any) -> TokenEvent:
    return TokenEvent(number, index, ids_of(text), finish, **fields)


def watching(*numbers: int, epoch: int = 1, **params: Any) -> Detokenizer:
    detokenizer = Detokenizer(TOKENIZER)
    for number in numbers:
        assert detokenizer.watch(Watch(number, epoch, SamplingParams(**params))) == []
    return detokenizer


def process(detokenizer: Detokenizer, *events: TokenEvent, epoch: int = 1) -> list[TextEvent]:
    return detokenizer.process(StepEvents(epoch, list(events))).events


def test_one_message_per_step() -> None:
    detokenizer = watching(1, 2)
    stats = StepStats(num_running=2)
    texts = detokenizer.process(StepEvents(1, [event(2, 0, "b"), event(1, 0, "a")], stats))
    assert texts.stats is stats
    assert [(text.event.number, text.text, text.num_tokens) for text in texts.events] == [(2, "b", 1), (1, "a", 1)]
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(texts), type=StepTexts) == texts


def test_finishes_pass_through_and_close() -> None:
    detokenizer = watching(1)
    finish = Finish("length")
    [text] = process(detokenizer, event(1, 0, "ab", finish, num_cached=3))
    assert (text.event.finish, text.event.num_cached, text.stopped_by_text) == (finish, 3, False)
    assert detokenizer.num_watched == 0
    assert process(detokenizer, event(1, 2, "c")) == []
    assert detokenizer.dropped["closed"] == 1


def test_a_stop_string_rewrites_the_event() -> None:
    detokenizer = watching(1, stop=("END",))
    logprobs = [TokenLogprobs(token_id, -1.0) for token_id in ids_of("xENDyy")]
    [text] = process(detokenizer, event(1, 0, "xENDyy", Finish("length"), logprobs=logprobs))
    assert (text.text, text.num_tokens, text.stopped_by_text) == ("x", 4, True)
    assert text.event.finish == Finish("stop", "END")
    assert text.event.token_ids == ids_of("xEND")
    assert text.event.logprobs == logprobs[:4]
    assert process(detokenizer, event(1, 6, "more", Finish("length"))) == []


def test_early_news_waits_for_its_watch() -> None:
    detokenizer = Detokenizer(TOKENIZER)
    assert process(detokenizer, event(1, 0, "a"), event(1, 1, "b", Finish("length"))) == []
    [texts] = detokenizer.watch(Watch(1, 1, SamplingParams()))
    assert [text.text for text in texts.events] == ["a", "b"]
    assert detokenizer.num_watched == 0
    assert detokenizer.watch(Watch(2, 1, SamplingParams())) == []


def test_early_news_is_bounded(monkeypatch: Any) -> None:
    monkeypatch.setattr(module, "MAX_EARLY_EVENTS", 2)
    detokenizer = Detokenizer(TOKENIZER)
    process(detokenizer, event(1, 0, "a"), event(1, 1, "b"), event(1, 2, "c"))
    assert detokenizer.dropped["early"] == 1
    [texts] = detokenizer.watch(Watch(1, 1, SamplingParams()))
    [text] = texts.events
    assert text.event.finish is not None
    assert (text.event.finish.kind, text.event.finish.status) == ("error", 500)


def test_closed_requests_are_remembered_up_to_a_limit(monkeypatch: Any) -> None:
    monkeypatch.setattr(module, "MAX_CLOSED", 1)
    detokenizer = watching(1, 2)
    detokenizer.forget(Forget([1, 2]))
    assert process(detokenizer, event(2, 0, "a"), event(1, 0, "a")) == []
    assert (detokenizer.dropped["closed"], detokenizer.num_watched) == (1, 0)


def test_forgotten_requests_are_ignored() -> None:
    detokenizer = watching(1)
    process(detokenizer, event(2, 0, "early"))
    detokenizer.forget(Forget([1, 2, 99]))
    assert process(detokenizer, event(1, 0, "a"), event(2, 0, "b"), event(99, 0, "c"), epoch=3) == []
    assert detokenizer.dropped["closed"] == 3
    assert detokenizer.watch(Watch(2, 1, SamplingParams())) == []


def test_repeated_ids_are_dropped() -> None:
    detokenizer = watching(1)
    process(detokenizer, event(1, 0, "abc"))
    [again] = process(detokenizer, event(1, 1, "bcd"))
    assert (again.text, again.event.index, again.event.token_ids, again.num_tokens) == ("d", 3, ids_of("d"), 4)
    [nothing] = process(detokenizer, event(1, 0, "ab"))
    assert (nothing.text, nothing.num_tokens) == ("", 4)
    [more] = process(detokenizer, event(1, 4, "e"))
    assert more.text == "e"
    assert detokenizer.dropped["repeated"] == 2


def test_lost_ids_fail_the_request() -> None:
    detokenizer = watching(1, stop=("bX",))
    process(detokenizer, event(1, 0, "ab"))
    [failed] = process(detokenizer, event(1, 3, "d"))
    assert failed.event.finish is not None
    assert (failed.event.finish.kind, failed.text, failed.num_tokens) == ("error", "b", 2)
    assert detokenizer.num_watched == 0


def test_a_newer_epoch_replays() -> None:
    """After a crash: news of the old life is dropped, news of the new one waits for its Watch, the text goes on."""
    detokenizer = watching(1, stop=("bX",))
    [first] = process(detokenizer, event(1, 0, "ab"))
    assert first.text == "a"
    assert process(detokenizer, event(1, 2, "X"), epoch=2) == []
    replay = Watch(1, 2, SamplingParams(stop=("bX",)), pack_ids([7, *ids_of("ab")]), num_emitted=2, num_chars=1)
    [texts] = detokenizer.watch(replay)
    [stopped] = texts.events
    assert (texts.epoch, stopped.text, stopped.num_tokens, stopped.stopped_by_text) == (2, "", 3, True)
    late = watching(1, epoch=2)
    assert process(late, event(1, 0, "old"), epoch=1) == []
    assert late.watch(Watch(1, 1, SamplingParams())) == []
    assert late.dropped["stale"] == 2
    assert [text.text for text in process(late, event(1, 0, "new"), epoch=2)] == ["new"]


def test_a_stop_inside_replayed_ids_shows_with_the_next_news() -> None:
    detokenizer = Detokenizer(TOKENIZER)
    replay = Watch(1, 2, SamplingParams(stop=("b",)), pack_ids(ids_of("abc")), num_emitted=3, num_chars=0)
    assert detokenizer.watch(replay) == []
    [text] = process(detokenizer, event(1, 3, "d"), epoch=2)
    assert (text.text, text.num_tokens, text.event.token_ids) == ("a", 2, [])
    assert text.event.finish == Finish("stop", "b")


def test_unusable_parameters_end_the_request() -> None:
    detokenizer = Detokenizer(TOKENIZER)
    [texts] = detokenizer.watch(Watch(1, 1, SamplingParams(stop_regex=("(",))))
    [text] = texts.events
    assert text.event.finish is not None
    assert (text.event.finish.kind, text.event.finish.status) == ("error", 400)


def test_odd_watches_and_ids_are_survived() -> None:
    detokenizer = Detokenizer(TOKENIZER)
    assert detokenizer.watch(Watch(1, 1, SamplingParams(), b"\x01\x02\x03", num_emitted=-3, num_chars=-1)) == []
    assert detokenizer.watch(Watch(2, 1, SamplingParams(), pack_ids([1]), num_emitted=9, num_chars=99)) == []
    texts = process(detokenizer, TokenEvent(1, -4, [-1, 1 << 31]), TokenEvent(1, 0, [-1, 10**9, ord("x")]), TokenEvent(2, 1, []))
    assert [text.text for text in texts][1] == "x"


NUMBERS = st.integers(0, 3)
FINISHES = st.none() | st.sampled_from([Finish("length"), Finish("stop", ord("b")), Finish("abort"), Finish("error")])
EVENTS = st.builds(TokenEvent, NUMBERS, st.integers(-1, 4), st.lists(st.sampled_from([*b"ab", 258, -1]), max_size=3), FINISHES)
MESSAGES = st.lists(
    st.builds(StepEvents, st.integers(0, 2), st.lists(EVENTS, max_size=4))
    | st.builds(Watch, NUMBERS, st.integers(0, 2), st.builds(SamplingParams, stop=st.sampled_from([(), ("ab",)])))
    | st.builds(Forget, st.lists(NUMBERS, max_size=2)),
    max_size=25,
)


@given(messages=MESSAGES)
@settings(max_examples=400, deadline=None)
def test_any_messages_in_any_order(messages: list[Any]) -> None:
    """Never raises; between a request's openings its texts count up without gaps and it ends at most once."""
    detokenizer = Detokenizer(TOKENIZER)
    num_tokens: dict[int, int] = {}
    ended: set[int] = set()
    epochs: dict[int, int] = {}
    for message in messages:
        match message:
            case StepEvents():
                answers = [detokenizer.process(message)]
            case Watch():
                if message.number in ended or message.epoch >= epochs.get(message.number, 0):
                    num_tokens[message.number] = 0
                    ended.discard(message.number)
                    epochs[message.number] = message.epoch
                answers = detokenizer.watch(message)
            case _:
                answers = []
                detokenizer.forget(message)
                ended |= set(message.numbers)
        for text in (text for answer in answers for text in answer.events):
            number = text.event.number
            assert number in num_tokens
            assert number not in ended
            assert num_tokens[number] <= text.num_tokens
            assert text.num_tokens == text.event.index + len(text.event.token_ids) or not text.event.token_ids
            num_tokens[number] = text.num_tokens
            if text.event.finish is not None:
                ended.add(number)
