"""One scheduling decision: take in results and messages, say what happened, plan the next step.

Owns the order of a step and the running totals; custody of pages, admission, decoding and endings are its parts'. Invariant:
`step` is a pure function of state and inputs, never raises on request data, and gives every request exactly one terminal event.
"""

from __future__ import annotations

from collections import deque

import msgspec

from sapwood.core.constraint import GrammarOrder
from sapwood.core.plan import EngineLimits, StepPlan, StepResult
from sapwood.core.request import RequestState
from sapwood.core.transfer import TransferOrder
from sapwood.errors import InvalidRequest
from sapwood.kvcache.events import CacheEvent
from sapwood.messages.types import Answer, Ask, AskTimeline, Order, StepInputs, StepStats, TokenEvent
from sapwood.scheduler.budget import make_budget
from sapwood.scheduler.custody import Custody
from sapwood.scheduler.deadlines import Deadlines
from sapwood.scheduler.decode import Decoder
from sapwood.scheduler.gate import Gate, is_engine_order
from sapwood.scheduler.inbox import Inbox
from sapwood.scheduler.memory import Reservation
from sapwood.scheduler.options import SchedulerOptions
from sapwood.scheduler.plan_builder import PlanBuilder
from sapwood.scheduler.preemption import Preemptor
from sapwood.scheduler.prefill import Limit, Prefiller
from sapwood.scheduler.progress import Progress
from sapwood.scheduler.resident import Resident
from sapwood.scheduler.results import absorb, error_finish, make_event
from sapwood.scheduler.roster import Roster
from sapwood.scheduler.timeline import NullTimelines, Timelines


class StepOutcome(msgspec.Struct, frozen=True):
    """What a decision says: the step to launch (None: nothing can be launched now), news of requests, replies to questions,
    orders for the cache's storage and for the grammars, what routers should know of the cache, and orders for the engine, to be
    carried out before anything else is launched."""

    plan: StepPlan | None
    events: list[TokenEvent]
    answers: list[Answer]
    transfers: list[TransferOrder] = []
    cache_events: list[CacheEvent] = []
    grammars: list[GrammarOrder] = []
    orders: list[Order] = []


class Launched(msgspec.Struct, frozen=True):
    """A plan that was handed out and not yet confirmed, with the request behind each of its rows."""

    plan: StepPlan
    residents: list[Resident]


class Scheduler:
    """Decides for one replica. Every plan that `step` returns must be launched, and its result passed to a later `step`, in
    order; one or more plans may be in flight meanwhile."""

    def __init__(self, limits: EngineLimits, options: SchedulerOptions) -> None:
        self._limits = limits
        self._options = options
        self._custody = Custody(limits, options)
        self._progress = Progress()
        num_timelines = options.request_timelines
        self._timelines = Timelines(num_timelines, self._progress) if num_timelines else NullTimelines()
        self._roster = Roster(self._custody, self._progress, self._timelines)
        self._reservation = Reservation(options, limits.page_size)
        self._budget = make_budget(options, limits.page_size)
        self._deadlines = Deadlines(options)
        self._gate = Gate()
        self._inbox = Inbox(limits, options, self._roster, self._custody, self._deadlines, self._gate)
        self._preemptor = Preemptor(self._roster, self._reservation, options)
        self._prefiller = Prefiller(self._custody, self._roster, self._reservation, self._preemptor, options, self._progress)
        self._decoder = Decoder(self._custody, self._roster, self._reservation, options.step_token_budget)
        self._in_flight: deque[Launched] = deque()
        self._num_generated_tokens = 0
        self._num_timeouts = 0
        self._num_violations = 0

    # ------------------------------------------------------------------------------------------------- the step
    def step(self, inputs: StepInputs) -> StepOutcome:
        """Results first, then messages in their order, then the plan."""
        self._progress.now_s = inputs.now_s
        self._custody.tell_time(inputs.now_s)
        for done in inputs.transfers:
            self._custody.tiers.storage.done(done)
        events: list[TokenEvent] = []
        if inputs.grammars:
            self._take_grammars(inputs, events)
        for result in inputs.results:
            self._confirm(result, events)
        answers: list[Answer] = []
        for message in inputs.messages:
            self._roster.settle(self._progress.confirmed_step)
            self._inbox.take(message, self.answer, events, answers)
        if self._deadlines.is_due(self._progress.now_s, self._roster.live):
            self._expire(events)
        self._roster.settle(self._progress.confirmed_step)
        if not self._roster.live:
            self._reservation.on_idle()
        orders = self._gate.take_orders()
        plan = None if orders and is_engine_order(orders) else self._plan()
        if not self._in_flight:
            answers += self._gate.answers()
        transfers, cache_events = self._custody.tiers.storage.take_orders(), self._custody.events.take()
        return StepOutcome(plan, events, answers, transfers, cache_events, self._roster.grammars.take_orders(), orders)

    def _take_grammars(self, inputs: StepInputs, events: list[TokenEvent]) -> None:
        """Requests whose grammars are ready may be admitted; those whose cannot be compiled fail."""
        for done in inputs.grammars:
            self._roster.grammars.done(done)
            request = self._roster.live.get(done.number)
            if request is not None and done.error:
                self._roster.end(request, RequestState.FAILED)
                events.append(make_event(request, finish=error_finish(InvalidRequest(done.error))))

    def _expire(self, events: list[TokenEvent]) -> None:
        for request, error in self._deadlines.expired(self._progress.now_s, self._roster.live):
            self._num_timeouts += 1
            self._roster.end(request, RequestState.FAILED)
            events.append(make_event(request, finish=error_finish(error)))

    def _confirm(self, result: StepResult, events: list[TokenEvent]) -> None:
        if not self._in_flight or self._in_flight[0].plan.step != result.step:
            raise RuntimeError(f"the result of step {result.step} came out of order; pass every launched step's, oldest first")
        launched = self._in_flight.popleft()
        self._budget.observe(launched.plan, result.duration_s)
        self._progress.confirmed_step = result.step
        self._custody.settle(result.step)
        limits, page_size = self._limits, self._limits.page_size
        for index, (resident, row) in enumerate(zip(launched.residents, launched.plan.rows, strict=True)):
            request = resident.request
            if request.state.is_terminal:
                continue
            event = absorb(request, row, index, result, limits)
            if event is not None:
                events.append(event)
                self._num_generated_tokens += len(event.token_ids)
                if event.finish is not None:
                    state = RequestState.FAILED if event.finish.kind == "error" else RequestState.FINISHED
                    self._roster.end(request, state)
            first = row.first
            is_prompt = first < request.num_prompt
            is_full = first // page_size < request.num_confirmed // page_size  # a page more than before
            if (is_prompt or is_full) and not resident.is_leaving:
                self._custody.publish(resident, soon=is_prompt)
                self._custody.window.advance(resident)

    def _plan(self) -> StepPlan | None:
        """Decodes and prompts together, or (prefill-first) decodes only when no prompt can be computed.

        Rows are re-pointed first, because the duplicates that this frees may be the very pages that the step needs; when no
        row can run, the plan moves only state.
        """
        builder = PlanBuilder(self._progress.num_steps + 1, self._limits)
        if self._custody.repoint(builder):
            self._custody.settle(self._progress.confirmed_step)
        if not self._gate.is_closed:
            self._fill(builder)
        is_last = self._inbox.is_draining and not self._roster.live and not self._roster.leaving
        self._custody.move(builder, self._inbox.leave_by_s if is_last else None)
        if builder.is_empty:
            return None
        plan = builder.build()
        self._in_flight.append(Launched(plan, builder.residents))
        self._progress.num_steps = builder.step
        self._progress.num_computed_tokens += builder.num_tokens
        return plan

    def _fill(self, builder: PlanBuilder) -> None:
        """The rows of a step."""
        if self._options.mode == "mixed":
            self._decoder.fill(builder, self._progress.confirmed_step)
            self._prefiller.fill(builder, self._budget.open(builder.rows))
            return
        self._prefiller.fill(builder, self._budget.open(()))
        if not builder.rows:
            self._decoder.fill(builder, self._progress.confirmed_step)

    # ------------------------------------------------------------------------------------------------- questions
    @property
    def has_work(self) -> bool:
        """Whether a request is unfinished, a launched step unconfirmed, or (draining) the cache on its way to storage."""
        return bool(self._roster.live or self._roster.leaving or self._in_flight or self._custody.tiers.is_leaving)

    @property
    def may_rest(self) -> bool:
        """Whether nothing gets on without a message: there is no work, or the replica is paused."""
        return not self.has_work or (self._gate.is_closed and not self._in_flight)

    @property
    def idle(self) -> bool:
        """Whether there is nothing to do until a message arrives."""
        return not self.has_work

    @property
    def is_draining(self) -> bool:
        """Whether Drain was asked: nothing new is accepted, and the worker may exit once idle."""
        return self._inbox.is_draining

    @property
    def limit(self) -> Limit:
        """Why the latest step admitted no more than it did."""
        return self._prefiller.limit

    def num_cached_tokens(self, namespace: str, run: bytes) -> int:
        """How many leading tokens of `run` (little-endian int32) the prefix index holds in whole pages; changes nothing."""
        return len(self._custody.index.match(namespace, run, touch=False).pages) * self._limits.page_size

    @property
    def suspects(self) -> list[int]:
        """Numbers of the requests in launched, unconfirmed steps."""
        return [resident.request.number for launched in self._in_flight for resident in launched.residents]

    def answer(self, question: Ask | AskTimeline) -> Answer:
        """The reply to a question about the scheduler's state."""
        if isinstance(question, Ask):
            return Answer(question.ask, True, data=msgspec.structs.asdict(self.stats()))
        timeline = self._timelines.report(question.number)
        return Answer(question.ask, timeline is not None, data=timeline or {})

    def stats(self) -> StepStats:
        """Gauges and running totals as of now."""
        index, pool = self._custody.index, self._custody.pool
        return StepStats(
            num_running=len(self._roster.running),
            num_waiting=self._roster.num_waiting,
            num_pages=pool.num_pages,
            num_free_pages=pool.num_free,
            num_cached_pages=index.num_pages,
            num_evictable_pages=index.num_evictable,
            page_size=pool.page_size,
            steps_total=self._progress.num_steps,
            prompt_tokens_total=self._prefiller.num_prompt_tokens,
            cached_tokens_total=self._prefiller.num_cached_tokens,
            computed_tokens_total=self._progress.num_computed_tokens,
            generated_tokens_total=self._num_generated_tokens,
            retractions_total=self._decoder.num_retractions,
            preemptions_total=self._preemptor.num_preemptions,
            timeouts_total=self._num_timeouts,
            evicted_pages_total=index.num_evicted_total,
            stale_messages_total=self._inbox.num_stale,
            law_violations_total=self._num_violations,
            new_token_ratio=self._reservation.ratio,
            cached_host_tokens_total=self._prefiller.num_cached_below[0],
            cached_storage_tokens_total=self._prefiller.num_cached_below[1],
            num_pins=len(self._custody.pins),
            **self._custody.tiers.counts,
            **self._custody.window.counts,
        )

    @property
    def num_unaccounted(self) -> int:
        """Pages that nobody holds, less those that are held twice: 0 while the law of pages holds. A sum over who holds a slot,
        which is cheap enough while requests run."""
        pool, index = self._custody.pool, self._custody.index
        num_private = sum(
            resident.num_private for holders in (self._roster.running, self._roster.leaving) for resident in holders
        )
        return pool.num_pages - pool.num_free - index.num_pages - self._custody.num_draining - num_private

    def check(self) -> list[str]:
        """Prove the law of pages; one line per violation (counted), none when it holds.

        Walks every page: for tests, and for moments when nothing else is to do. A law broken while idle is mended on the spot
        by starting over with an empty index.
        """
        problems = self._custody.violations([*self._roster.running, *self._roster.leaving])
        self._num_violations += len(problems)
        if problems and self.idle:
            self._custody.rebuild()
        return problems
