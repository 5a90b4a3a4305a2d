"""What each message does.

Owns tombstones (aborts that overtook their request), the epoch and the count of stale messages; does not plan. Invariant: a
Submit that is taken in leads to exactly one terminal event, at once when it is refused; a Stop leads to none.
"""

from __future__ import annotations

from collections.abc import Callable

from sapwood.core.plan import EngineLimits
from sapwood.core.request import Request, RequestState
from sapwood.errors import Aborted, InvalidRequest, Overloaded, SapwoodError, Unavailable
from sapwood.messages.types import (
    Abort,
    Answer,
    Ask,
    AskTimeline,
    Drain,
    Finish,
    Flush,
    Renew,
    Stop,
    Submit,
    TokenEvent,
    ToWorker,
    Unpin,
)
from sapwood.scheduler.custody import Custody
from sapwood.scheduler.deadlines import Deadlines
from sapwood.scheduler.intake import make_request
from sapwood.scheduler.options import SchedulerOptions
from sapwood.scheduler.results import LENGTH, error_finish, make_event
from sapwood.scheduler.roster import Roster


class Inbox:
    """Applies messages to the roster."""

    def __init__(
        self, limits: EngineLimits, options: SchedulerOptions, roster: Roster, custody: Custody, deadlines: Deadlines
    ) -> None:
        self._limits = limits
        self._options = options
        self._roster = roster
        self._custody = custody
        self._deadlines = deadlines
        self._tombstones: dict[int, str] = {}
        self._epoch = 0
        self._num_arrivals = 0
        self.num_stale = 0
        self.is_draining = False
        self.leave_by_s = 0.0

    def take(
        self, message: ToWorker, answer: Callable[[Ask | AskTimeline], Answer], events: list[TokenEvent], answers: list[Answer]
    ) -> None:
        """Apply one message; news and replies are appended to `events` and `answers`."""
        match message:
            case Submit():
                self._submit(message, events)
            case Abort():
                for number in message.numbers:
                    self._abort(number, message.message, events)
            case Stop():
                self._stop(message)
            case Renew():
                self._renew(message, events)
                answers.append(Answer(message.ask, True))
            case Flush():
                answers.append(self._flush(message))
            case Unpin():
                self._custody.pins.drop(message.names)
            case Ask() | AskTimeline():
                answers.append(answer(message))
            case Drain():
                self.is_draining = True
                self.leave_by_s = self._custody.now_s + message.save_s

    def _submit(self, submit: Submit, events: list[TokenEvent]) -> None:
        if submit.epoch < self._epoch or submit.number in self._roster.live:
            self.num_stale += 1
            return
        self._epoch = submit.epoch
        aborted = self._tombstones.pop(submit.number, None)
        if aborted is not None:
            events.append(TokenEvent(submit.number, submit.num_emitted, [], _abort_finish(aborted)))
            return
        try:
            request = self._accept(submit)
            if not submit.waited_s:  # a replayed request had its place
                self._find_place(request, events)
        except SapwoodError as error:
            events.append(TokenEvent(submit.number, submit.num_emitted, [], error_finish(error)))
            return
        if request.num_known == request.max_len > request.num_prompt:
            request.end(RequestState.FINISHED)
            events.append(make_event(request, finish=LENGTH))
            return
        self._roster.add(request, submit.waited_s)
        self._deadlines.watch(request, submit.queue_timeout_s, submit.timeout_s)

    def _accept(self, submit: Submit) -> Request:
        """The request, unless it is refused for what it is (400) or for the time (503)."""
        request = make_request(submit, self._num_arrivals, self._limits, self._options)
        self._num_arrivals += 1
        if self.is_draining:
            raise Unavailable("the server is shutting down; send the request to another one", retry_after_s=1.0)
        if request.num_known > request.max_len:
            raise InvalidRequest("more completion tokens were already emitted than max_new_tokens allows", param="max_new_tokens")
        return request

    def _find_place(self, request: Request, events: list[TokenEvent]) -> None:
        """Make sure that the queue has room; in a full one, a less important request that never ran makes place."""
        max_queue = self._options.max_queue
        if max_queue is None or self._roster.num_waiting < max_queue + self._custody.num_free_slots:
            return
        full = Overloaded(f"the queue is full ({max_queue} requests wait); try again later", retry_after_s=1.0)
        junior = self._roster.waiting.most_junior_unstarted()
        if junior is None or junior.priority >= request.priority:
            raise full
        self._roster.end(junior, RequestState.FAILED)
        events.append(make_event(junior, finish=error_finish(full)))

    def _abort(self, number: int, reason: str, events: list[TokenEvent]) -> None:
        request = self._roster.live.get(number)
        if request is None:
            self._tombstones[number] = reason
            if len(self._tombstones) > self._options.max_tombstones:
                del self._tombstones[next(iter(self._tombstones))]
                self.num_stale += 1
            return
        self._roster.end(request, RequestState.ABORTED)
        events.append(make_event(request, finish=_abort_finish(reason)))

    def _stop(self, stop: Stop) -> None:
        request = self._roster.live.get(stop.number)
        if request is None:
            self.num_stale += 1
            return
        self._roster.end(request, RequestState.FINISHED, request.num_prompt + max(stop.num_tokens, 0))

    def _renew(self, renew: Renew, events: list[TokenEvent]) -> None:
        """The server submits again what it still wants; what was said so far in this step is of the old epoch too."""
        events.clear()
        self._epoch = renew.epoch
        for request in list(self._roster.live.values()):
            self._roster.end(request, RequestState.ABORTED)
        self._tombstones.clear()
        self._deadlines.clear()

    def _flush(self, flush: Flush) -> Answer:
        num_live = len(self._roster.live)
        if num_live:
            return Answer(flush.ask, False, f"{num_live} requests run or wait; flush the cache when the server is idle")
        self._custody.pins.clear()
        self._custody.index.clear()
        return Answer(flush.ask, True, "the prefix cache is empty")


def _abort_finish(reason: str) -> Finish:
    return Finish("abort", None, reason, Aborted.status, Aborted.code)
