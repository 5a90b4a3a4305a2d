"""Which prompt tokens are computed in this step: chunks that have started, then newly admitted requests.

Owns the five conditions of admission and in-batch prefix sharing; does not decode. Invariant: the first request that does not fit
holds back all behind it but those of higher priority, so a large request is not starved by small ones.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from enum import Enum

from sapwood.core.request import Request, RequestState
from sapwood.kvcache.prefix import Match
from sapwood.scheduler.budget import Allowance
from sapwood.scheduler.custody import Custody
from sapwood.scheduler.memory import Reservation
from sapwood.scheduler.options import SchedulerOptions
from sapwood.scheduler.plan_builder import PlanBuilder
from sapwood.scheduler.policy import policies
from sapwood.scheduler.preemption import Preemptor
from sapwood.scheduler.progress import Progress
from sapwood.scheduler.queue_view import QueueView
from sapwood.scheduler.ranking import Ranking
from sapwood.scheduler.resident import Resident
from sapwood.scheduler.roster import Roster

MAX_FOLLOWERS_SKIPPED = 64
"""A step looks past at most so many requests that wait for a shared prefix, lest a long queue slow down every step."""


class Limit(Enum):
    """Why no more requests were admitted in a step: nobody waits, tokens, slots, memory, or a prefix that is being computed."""

    NOTHING = "nothing"
    EMPTY = "empty queue"
    BUDGET = "token budget"
    SLOTS = "slots"
    MEMORY = "memory"
    SHARING = "shared prefix"


class Prefiller:
    """Fills a plan with rows of prompt tokens."""

    def __init__(
        self,
        custody: Custody,
        roster: Roster,
        reservation: Reservation,
        preemptor: Preemptor,
        options: SchedulerOptions,
        progress: Progress,
    ) -> None:
        self._custody = custody
        self._roster = roster
        self._reservation = reservation
        self._progress = progress
        self._preemptor = preemptor
        view = QueueView(self._look, self._running, custody.pool.page_size, progress, options.seed)
        self._ranking = Ranking(policies.get(options.policy), roster.waiting, view)
        self._aging_interval = options.aging_interval
        self._num_until_elder = options.aging_interval
        self._max_running = options.max_running_requests
        self._follow_tokens = options.follow_tokens
        self.limit = Limit.NOTHING
        self.num_prompt_tokens = 0
        self.num_cached_tokens = 0
        self.num_cached_below = [0, 0]

    def fill(self, builder: PlanBuilder, allowance: Allowance) -> None:
        """Rows for as much as is allowed: a prompt that has started goes on first, then the waiting are tried in order."""
        for resident in self._roster.running:
            request = resident.request
            if request.state is RequestState.PREFILLING and request.num_pending and not allowance.is_spent:
                self._run(builder, resident, allowance)
        self.limit = self._first_limit(allowance)
        if self.limit is Limit.SLOTS and self._preemptor.make_room(self._roster.waiting.first, num_slots=1):
            self._settle(allowance)
        while self.limit is Limit.NOTHING and self._admit(builder, allowance):
            self._settle(allowance)

    def _settle(self, allowance: Allowance) -> None:
        """Somebody was preempted; go on at once if no launched step stands in the way."""
        self._roster.settle(self._progress.confirmed_step)
        self.limit = self._first_limit(allowance)

    def _first_limit(self, allowance: Allowance) -> Limit:
        """What forbids any admission, if something does. EMPTY comes first: an empty queue is limited by nothing else."""
        if not self._roster.waiting:
            return Limit.EMPTY
        if allowance.is_spent:
            return Limit.BUDGET
        if self._roster.is_retracting:
            return Limit.MEMORY
        return Limit.NOTHING if self._has_slot() else Limit.SLOTS

    def _has_slot(self) -> bool:
        """Condition 2, and the limit on running requests of condition 5."""
        is_below_limit = self._max_running is None or len(self._roster.running) < self._max_running
        return is_below_limit and self._custody.num_free_slots > 0

    def _admit(self, builder: PlanBuilder, allowance: Allowance) -> bool:
        """Try the waiting in order; True when room was made for one of them by preempting others."""
        num_promised = self._reservation.promised_pages(self._roster.running)
        self._age()
        held_back, highest = -sys.maxsize, self._roster.waiting.first.priority
        leaders, num_followers = self._leaders(), 0
        for request in self._ranking.order():
            if request.priority <= held_back or request.state is not RequestState.WAITING:
                continue
            if self._custody.tiers.is_awaited(request.number) or self._roster.grammars.is_awaited(request.number):
                continue
            match = self._custody.match(request)
            donor, num_rows = self._donor(request, match)
            num_matched = match.num_whole * self._custody.pool.page_size + max(num_rows, match.num_rows)
            if self._follows(request, num_matched, leaders):
                num_followers += 1
                self.limit = Limit.SHARING
                if num_followers > MAX_FOLLOWERS_SKIPPED:
                    return False
                continue
            num_wanted = self._reservation.wanted_pages(request)
            resident = self._custody.house(request, match, num_wanted, num_promised, use_source=donor is None)
            while resident is None and self._custody.pins.drop_oldest():
                match = self._custody.match(request)
                donor, num_rows = self._donor(request, match)
                resident = self._custody.house(request, match, num_wanted, num_promised, use_source=donor is None)
            if resident is None:
                num_missing = num_wanted - len(match.pages) + num_promised - self._custody.num_available
                held_back, self.limit = request.priority, Limit.MEMORY
                if self._preemptor.make_room(request, num_pages=max(num_missing, 1)):
                    return True
                if held_back >= highest:
                    return False
                continue
            self._start(builder, resident, match, donor, num_rows)
            self._run(builder, resident, allowance)
            leaders.append(request)
            num_promised += num_wanted - len(resident.pages)
            limit = self._first_limit(allowance)
            if limit is not Limit.NOTHING:
                self.limit = limit
                return False
        return False

    def _start(
        self, builder: PlanBuilder, resident: Resident, match: Match[object], donor: Resident | None, num_rows: int
    ) -> None:
        """Move a request that was given slot and pages from the queue to the batch; copy the rows of a partly matched page."""
        request, num_whole = resident.request, len(match.pages)
        source_page = match.source_page
        if donor is not None:
            source_page, donor.last_step = donor.pages[num_whole], builder.step
        elif resident.source is not None:
            num_rows = match.num_rows
        if num_rows:
            self._custody.hold_source(resident, source_page, builder.step)
            builder.copy_rows(source_page, resident, num_whole, num_rows)
        is_first, num_copied = request.num_cached < 0, num_rows
        if match.host:
            self._custody.load(resident, match)
            num_rows = len(match.host) * self._custody.pool.page_size
        request.admit(num_whole * self._custody.pool.page_size, num_rows)
        if is_first:
            self.num_prompt_tokens += request.num_prompt
            self.num_cached_tokens += request.num_cached
            for tier, num_tokens in enumerate(request.cached_below):
                self.num_cached_below[tier] += num_tokens
        self._roster.admit(resident)
        self._num_until_elder -= 1
        builder.start(resident)
        self._custody.window.start(builder, resident, source_page, num_copied)

    def _run(self, builder: PlanBuilder, resident: Resident, allowance: Allowance) -> None:
        """As large a chunk of the resident's prompt as is allowed."""
        request, window = resident.request, self._custody.window
        num_wanted = min(request.num_pending, window.room(resident))
        if num_wanted <= 0:
            return  # launched steps have to be confirmed first
        count = allowance.grant(request.num_computed, num_wanted)
        window.open(builder, resident, count)
        builder.run(resident, count)
        self._roster.timelines.note(request, "chunk", count, len(resident.pages))

    # ------------------------------------------------------------------------------------------------- order
    def _age(self) -> None:
        """Whatever the policy prefers, one admission in so many goes to whoever has waited longest, so nobody waits for ever."""
        if self._aging_interval and self._num_until_elder <= 0:
            self._num_until_elder = self._aging_interval
            self._roster.waiting.promote_oldest()

    def _look(self, request: Request) -> Match[object]:
        return self._custody.match(request, touch=False)

    def _running(self) -> Iterator[Request]:
        return (resident.request for resident in self._roster.running)

    # ------------------------------------------------------------------------------------------------- sharing in the batch
    def _leaders(self) -> list[Request]:
        """Running requests of whose prompts a part is not confirmed, and so not yet shared."""
        running = [resident.request for resident in self._roster.running]
        return [request for request in running if request.num_confirmed < request.num_prompt]

    def _follows(self, request: Request, num_matched: int, leaders: list[Request]) -> bool:
        """Whether one of the `leaders`, whose prompts are just being computed, will have what this request could share beyond
        the `num_matched` tokens that it can have already, so that waiting beats computing them twice.

        Samples of one group wait for any gain; others only when at least `follow_tokens` are to be shared. Of what the leader has
        confirmed already nothing more will come: where it does not match now, its window is gone.
        """
        if not self._custody.index.is_sharing:
            return False
        limit, page_size = request.match_limit, self._custody.pool.page_size
        for leader in leaders:
            if leader.namespace == request.namespace:
                gain = self._follow_tokens if leader.group != request.group else 1
                end = max(num_matched, leader.num_confirmed // page_size * page_size) + gain
                if end <= min(limit, leader.num_prompt) and leader.begins_like(request, end):
                    return True
        return False

    def _donor(self, request: Request, match: Match[object]) -> tuple[Resident | None, int]:
        """A running request of the same group whose unfinished page continues the match further than the index can."""
        page_size, index = self._custody.pool.page_size, len(match.pages)
        best, best_rows = None, match.num_rows
        if match.host or not self._custody.index.is_sharing:
            return None, 0
        for resident in self._roster.siblings(request.group):
            sibling = resident.request
            if sibling.namespace == request.namespace and resident.num_shared <= index:
                end = min(sibling.num_confirmed, sibling.num_prompt, request.match_limit, (index + 1) * page_size)
                is_longer = end - index * page_size > best_rows and self._custody.window.sees(resident, index)
                if is_longer and sibling.begins_like(request, end):
                    best, best_rows = resident, end - index * page_size
        return (best, best_rows) if best is not None else (None, 0)
