"""All watched requests: a step's ids in, a step's texts out.

Owns which requests are open and the news of those not yet known; does not know sockets or the model. Invariants: for each request
texts follow token indices without gap or repeat; nothing that arrives, however wrong, raises; what is dropped is counted.
"""

from __future__ import annotations

from collections import Counter, OrderedDict, deque
from dataclasses import dataclass

import msgspec

from sapwood.detokenizer.text_stream import TextStream
from sapwood.errors import SapwoodError
from sapwood.messages.types import Finish, Forget, StepEvents, StepTexts, TextEvent, TokenEvent, Watch, unpack_ids
from sapwood.tokenizer.tokenizer import Tokenizer

MAX_EARLY_EVENTS = 1 << 14
"""Events kept for requests whose `Watch` has not come yet; beyond it the oldest are dropped."""
MAX_CLOSED = 1 << 13
"""Ended requests remembered, so that late news of them is dropped rather than kept."""
_EVERY_EPOCH = 1 << 62


@dataclass(slots=True)
class _Open:
    """A watched request. `next_index` is the completion index of the next id to decode."""

    epoch: int
    next_index: int
    stream: TextStream


class Detokenizer:
    """Turns the worker's events into texts for every request of one server."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._open: dict[int, _Open] = {}
        self._early: deque[tuple[int, TokenEvent]] = deque()
        self._closed: OrderedDict[int, int] = OrderedDict()
        self.dropped: Counter[str] = Counter()

    @property
    def num_watched(self) -> int:
        """Requests whose end has not been seen."""
        return len(self._open)

    def watch(self, message: Watch) -> list[StepTexts]:
        """Open a request, or open it again in a newer epoch; returns the texts of news that came before it."""
        opened = self._open.get(message.number)
        if opened is not None and message.epoch < opened.epoch:
            self.dropped["stale"] += 1
            return []
        token_ids = unpack_ids(message.token_ids[: len(message.token_ids) // 4 * 4]).tolist()
        num_emitted = min(max(message.num_emitted, 0), len(token_ids))
        border = len(token_ids) - num_emitted
        try:
            stream = TextStream(
                self._tokenizer, message.params, token_ids[:border], token_ids[border:], max(message.num_chars, 0)
            )
        except SapwoodError as error:
            self._close(message.number, message.epoch)
            finish = Finish("error", message=error.message, status=error.status, code=error.code)
            failed = TextEvent(TokenEvent(message.number, num_emitted, [], finish), "", num_emitted)
            return [StepTexts(message.epoch, [failed])]
        self._closed.pop(message.number, None)
        self._open[message.number] = _Open(message.epoch, num_emitted, stream)
        texts = self._events_to_texts(message.epoch, self._take_early(message.number, message.epoch))
        return [StepTexts(message.epoch, texts)] if texts else []

    def forget(self, message: Forget) -> None:
        """Drop these requests' state and whatever still comes for them."""
        for number in message.numbers:
            self._close(number, _EVERY_EPOCH)
        gone = set(message.numbers)
        self._early = deque(entry for entry in self._early if entry[1].number not in gone)

    def process(self, message: StepEvents) -> StepTexts:
        """The texts of one step; events of requests not known yet are kept for their `Watch`."""
        return StepTexts(message.epoch, self._events_to_texts(message.epoch, message.events), message.stats)

    def _events_to_texts(self, epoch: int, events: list[TokenEvent]) -> list[TextEvent]:
        texts = []
        for event in events:
            text = self._event_to_text(epoch, event)
            if text is not None:
                texts.append(text)
        return texts

    def _event_to_text(self, epoch: int, event: TokenEvent) -> TextEvent | None:
        opened = self._open.get(event.number)
        if opened is None or epoch > opened.epoch:
            self._keep_or_drop(epoch, event)
            return None
        if epoch < opened.epoch:
            self.dropped["stale"] += 1
            return None
        if event.index > opened.next_index:
            return self._fail(event, opened)
        fresh = event if event.index == opened.next_index else _without_known(event, opened.next_index)
        if fresh is not event:
            self.dropped["repeated"] += 1
        return self._advance(fresh, opened)

    def _advance(self, event: TokenEvent, opened: _Open) -> TextEvent:
        delta = opened.stream.push(event.token_ids, event.finish)
        opened.next_index = max(opened.next_index, event.index + len(event.token_ids))
        stopped = delta.matched is not None
        if stopped:
            event = _cut(event, delta.num_tokens, Finish("stop", delta.matched))
        if event.finish is not None:
            self._close(event.number, opened.epoch)
        return TextEvent(event, delta.text, delta.num_tokens, stopped)

    def _fail(self, event: TokenEvent, opened: _Open) -> TextEvent:
        """Ids are missing, so the text cannot go on: the request ends here, and its client learns why."""
        self.dropped["gap"] += 1
        self._close(event.number, opened.epoch)
        message = "tokens of this request were lost between the worker and the detokenizer; send the request again"
        finish = Finish("error", message=message, status=500, code="engine_failed")
        rest = opened.stream.push([], finish)
        return TextEvent(TokenEvent(event.number, opened.next_index, [], finish), rest.text, rest.num_tokens)

    def _keep_or_drop(self, epoch: int, event: TokenEvent) -> None:
        if epoch <= self._closed.get(event.number, -1):
            self.dropped["closed"] += 1
            return
        self._early.append((epoch, event))
        if len(self._early) > MAX_EARLY_EVENTS:
            self._early.popleft()
            self.dropped["early"] += 1

    def _take_early(self, number: int, epoch: int) -> list[TokenEvent]:
        """The kept events of a request in this epoch; older ones are dropped, those of a newer epoch stay."""
        mine = [event for kept, event in self._early if event.number == number and kept == epoch]
        num_stale = sum(1 for kept, event in self._early if event.number == number and kept < epoch)
        self.dropped["stale"] += num_stale
        if mine or num_stale:
            self._early = deque(entry for entry in self._early if entry[1].number != number or entry[0] > epoch)
        return mine

    def _close(self, number: int, epoch: int) -> None:
        self._open.pop(number, None)
        self._closed[number] = epoch
        self._closed.move_to_end(number)
        if len(self._closed) > MAX_CLOSED:
            self._closed.popitem(last=False)


def _without_known(event: TokenEvent, next_index: int) -> TokenEvent:
    """The event without ids that were decoded before."""
    num_known = min(next_index - event.index, len(event.token_ids))
    if num_known <= 0:
        return event
    logprobs = None if event.logprobs is None else event.logprobs[num_known:]
    return msgspec.structs.replace(event, index=event.index + num_known, token_ids=event.token_ids[num_known:], logprobs=logprobs)


def _cut(event: TokenEvent, num_tokens: int, finish: Finish) -> TokenEvent:
    """The event as if the request had ended after `num_tokens` completion tokens."""
    count = max(0, num_tokens - event.index)
    logprobs = None if event.logprobs is None else event.logprobs[:count]
    return msgspec.structs.replace(event, token_ids=event.token_ids[:count], logprobs=logprobs, finish=finish)
