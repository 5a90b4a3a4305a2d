"""Which prompt tokens are computed in this step: chunks that have started, then newly admitted requests.

Owns the five conditions of admission and in-batch prefix sharing; does not decode. Invariant: the first request that does not fit
holds back all behind it but those of higher priority, so a large request is not starved by small ones.
"""

from __future__ import annotations

import sys

from sapwood.core.request import Request, RequestState
from sapwood.kvcache.prefix import Match
from sapwood.scheduler.custody import Custody
from sapwood.scheduler.memory import Reservation
from sapwood.scheduler.options import SchedulerOptions
from sapwood.scheduler.plan_builder import PlanBuilder
from sapwood.scheduler.policy import policies
from sapwood.scheduler.resident import Resident
from sapwood.scheduler.roster import Roster

MAX_FOLLOWERS_SKIPPED = 64
"""A step looks past at most so many requests that wait for a shared prefix, lest a long queue slow down every step."""


class Prefiller:
    """Fills a plan with rows of prompt tokens."""

    def __init__(self, custody: Custody, roster: Roster, reservation: Reservation, options: SchedulerOptions) -> None:
        self._custody = custody
        self._roster = roster
        self._reservation = reservation
        self._order = policies.get(options.policy)
        self._max_running = options.max_running_requests
        self._follow_tokens = options.follow_tokens
        self.num_prompt_tokens = 0
        self.num_cached_tokens = 0

    def fill(self, builder: PlanBuilder, budget: int) -> None:
        """Rows for at most `budget` tokens: a prompt that has started goes on first, then the waiting are tried in order."""
        for resident in self._roster.running:
            pending = resident.request.num_pending
            if pending and budget and resident.request.state is RequestState.PREFILLING:
                count = min(pending, budget)
                budget -= count
                builder.run(resident, count)
        if budget and self._has_room():
            self._admit(builder, budget)

    def _has_room(self) -> bool:
        """Condition 2, and the limit on running requests of condition 5."""
        is_below_limit = self._max_running is None or len(self._roster.running) < self._max_running
        return (
            bool(self._roster.waiting) and is_below_limit and self._custody.num_free_slots > 0 and not self._roster.is_retracting
        )

    def _admit(self, builder: PlanBuilder, budget: int) -> None:
        num_promised = self._reservation.promised_pages(self._roster.running)
        held_back, highest = -sys.maxsize, self._roster.waiting.highest_priority
        leaders, num_followers = self._leaders(), 0
        for request in self._order(self._roster.waiting.snapshot(), self._count_cached):
            if request.priority <= held_back:
                continue
            match = self._custody.match(request)
            donor, num_rows = self._donor(request, match)
            num_matched = len(match.pages) * self._custody.pool.page_size + max(num_rows, match.num_rows)
            if self._follows(request, num_matched, leaders):
                num_followers += 1
                if num_followers > MAX_FOLLOWERS_SKIPPED:
                    return
                continue
            num_wanted = self._reservation.wanted_pages(request)
            resident = self._custody.house(request, match, num_wanted, num_promised, use_source=donor is None)
            if resident is None:
                held_back = request.priority
                if held_back >= highest:
                    return
                continue
            self._start(builder, resident, match, donor, num_rows)
            count = min(request.num_pending, budget)
            budget -= count
            builder.run(resident, count)
            leaders = self._leaders()
            num_promised += num_wanted - len(resident.pages)
            if not budget or not self._has_room():
                return

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
            self._custody.hold_source(resident, builder.step)
        if num_rows:
            builder.copy_rows(source_page, resident, num_whole, num_rows)
        is_first = request.num_cached < 0
        request.admit(num_whole * self._custody.pool.page_size, num_rows)
        if is_first:
            self.num_prompt_tokens += request.num_prompt
            self.num_cached_tokens += request.num_cached
        self._roster.admit(resident)
        builder.start(resident)

    def _count_cached(self, request: Request) -> int:
        return len(self._custody.match(request, touch=False).pages) * self._custody.pool.page_size

    # ------------------------------------------------------------------------------------------------- sharing in the batch
    def _leaders(self) -> list[Request]:
        """Running requests of whose prompts a part is not confirmed, and so not yet shared."""
        if not self._custody.index.is_sharing:
            return []
        running = (resident.request for resident in self._roster.running)
        return [request for request in running if request.num_confirmed < request.num_prompt]

    def _follows(self, request: Request, num_matched: int, leaders: list[Request]) -> bool:
        """Whether one of the `leaders`, whose prompts are just being computed, will have what this request could share beyond
        the `num_matched` tokens that it can have already, so that waiting beats computing them twice.

        Samples of one group wait for any gain; others only when at least `follow_tokens` are to be shared.
        """
        limit = request.match_limit
        for leader in leaders:
            if leader.namespace == request.namespace:
                gain = self._follow_tokens if leader.group != request.group else 1
                end = num_matched + gain
                if end <= min(limit, leader.num_prompt) and leader.begins_like(request, end):
                    return True
        return False

    def _donor(self, request: Request, match: Match[object]) -> tuple[Resident | None, int]:
        """A running request of the same group whose unfinished page continues the match further than the index can."""
        page_size, index = self._custody.pool.page_size, len(match.pages)
        best, best_rows = None, match.num_rows
        if not self._custody.index.is_sharing:
            return None, 0
        for resident in self._roster.siblings(request.group):
            sibling = resident.request
            if sibling.namespace == request.namespace and resident.num_shared <= index:
                end = min(sibling.num_confirmed, sibling.num_prompt, request.match_limit, (index + 1) * page_size)
                if end - index * page_size > best_rows and sibling.begins_like(request, end):
                    best, best_rows = resident, end - index * page_size
        return (best, best_rows) if best is not None else (None, 0)
