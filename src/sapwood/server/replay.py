"""What a crash leaves to do in the registry: submit again every unfinished request, from where its client is.

Owns the form of a replay; does not know processes, nor when it is time. Invariant: what is replayed goes on behind the ids that
the registry has accepted and the characters that it has taken, with the same parameters, seed and deadline.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

import msgspec

from sapwood.errors import SapwoodError
from sapwood.messages.types import Finish, Renew, Submit, ToWorker, Watch, pack_ids
from sapwood.server.backend import Backend
from sapwood.server.questions import Questions
from sapwood.server.record import RecordState, RequestRecord

CONTEXT_IDS = 16
"""Prompt ids that the detokenizer gets, so that the completion's first characters join on as they would in one decode."""
RENEW_TIMEOUT_S = 60.0
"""How long a worker may take to answer: a step, and what it has queued."""


def watch_of(record: RequestRecord) -> Watch:
    """What the detokenizer must know of a request, whatever its client already has."""
    token_ids = record.prompt.token_ids[-CONTEXT_IDS:] + record.token_ids
    return Watch(record.number, record.epoch, record.params, pack_ids(token_ids), len(record.token_ids), record.num_chars)


def as_replay(first: Submit, record: RequestRecord, now_s: float) -> Submit:
    """A request's first `Submit` as the one that goes on where its client is."""
    return msgspec.structs.replace(
        first,
        token_ids=first.token_ids + pack_ids(record.token_ids),
        num_emitted=len(record.token_ids),
        waited_s=max(now_s - record.timings.received_s, 1e-6),
    )


@dataclass(slots=True)
class Replays:
    """The registry as recovery sees it; `Frontend` makes it of its own parts. While `is_holding`, new requests are only
    registered: the next `replay` sends them."""

    backend: Backend
    questions: Questions
    records: Mapping[int, RequestRecord]
    first_submit: Callable[[RequestRecord, bytes], Submit]
    send: Callable[[ToWorker], None]
    end: Callable[[list[RequestRecord], Finish], None]
    clock: Callable[[], float]
    is_holding: bool = False

    @property
    def unfinished(self) -> dict[int, int]:
        """How many completion ids have come, by number."""
        return {number: len(record.token_ids) for number, record in self.records.items()}

    def hold(self) -> None:
        """The worker, or the way to it, is gone: what is asked of it will not be answered."""
        self.is_holding = True
        self.questions.fail_all("the engine is recovering; try again")

    async def renew(self, ask: int, events_address: str) -> None:
        """Let a worker that survived forget all requests and enter the present epoch; raises Unavailable when it does not."""
        await self.questions.ask(Renew(ask, self.backend.epoch, events_address), RENEW_TIMEOUT_S)

    def replay(self, numbers: Iterable[int] | None = None) -> None:
        """Submit these requests again, or all and hold no more."""
        self.questions.fail_all("the engine was recovering; try again")
        if numbers is None:
            self.is_holding = False
            numbers = list(self.records)
        for number in numbers:
            record = self.records.get(number)
            if record is not None:
                self._replay(record)

    def fail(self, number: int, error: SapwoodError) -> None:
        """One request is not tried again."""
        record = self.records.get(number)
        if record is not None:
            self.end([record], Finish("error", message=error.message, status=error.status, code=error.code))

    def _replay(self, record: RequestRecord) -> None:
        record.epoch = self.backend.epoch
        self.backend.watch(watch_of(record))
        if record.state is not RecordState.CLOSED:
            first = self.first_submit(record, pack_ids(record.prompt.token_ids))
            self.send(as_replay(first, record, self.clock()))
