"""Which running requests decode in this step, and what happens when pages run out.

Owns the order in which pages are granted and who is retracted; does not admit. Invariant: the most senior running request is
never retracted and decodes as soon as one page can be had, so the batch always gets on.
"""

from __future__ import annotations

from sapwood.core.request import RequestState
from sapwood.scheduler.budget import UNLIMITED
from sapwood.scheduler.custody import Custody
from sapwood.scheduler.memory import Reservation
from sapwood.scheduler.plan_builder import PlanBuilder
from sapwood.scheduler.resident import Resident, seniority
from sapwood.scheduler.roster import Roster


class Decoder:
    """Fills a plan with decode rows."""

    def __init__(self, custody: Custody, roster: Roster, reservation: Reservation, step_tokens: int | None) -> None:
        self._custody = custody
        self._roster = roster
        self._reservation = reservation
        self._step_tokens = UNLIMITED if step_tokens is None else step_tokens
        self.num_retractions = 0

    def fill(self, builder: PlanBuilder, confirmed_step: int) -> None:
        """One row per decoding request, each with the page it needs; where pages are short, the most senior come first."""
        decoding, page_size = RequestState.DECODING, self._custody.pool.page_size
        rows = [r for r in self._roster.running if r.request.state is decoding and r.request.num_pending]
        needy = [resident for resident in rows if len(resident.pages) * page_size <= resident.request.num_computed]
        if needy:
            rows = self._give_pages(builder, rows, needy, confirmed_step)
        num_spare = max(self._step_tokens - len(rows), 0)
        for resident in rows:
            request = resident.request
            has_more = request.num_known - request.num_computed > 1
            num_ahead = self._num_ahead(builder, resident, num_spare) if has_more else 0
            builder.run(resident, 1 + num_ahead)
            num_spare -= num_ahead
        if rows:
            self._reservation.on_decode()

    def _give_pages(
        self, builder: PlanBuilder, rows: list[Resident], needy: list[Resident], confirmed_step: int
    ) -> list[Resident]:
        """A page for each of the `needy` rows, as far as there are pages; returns the rows that can run."""
        while len(needy) > self._custody.num_available and self._custody.pins.drop_oldest():
            pass
        if len(needy) > min(self._custody.num_available, self._custody.window.num_available):
            self._make_room(len(needy), confirmed_step)
            num_lucky = min(self._custody.num_available, self._custody.window.num_available)
            needy = sorted((resident for resident in needy if not resident.is_leaving), key=seniority)
            unlucky = set(map(id, needy[num_lucky:]))
            rows = [resident for resident in rows if not resident.is_leaving and id(resident) not in unlucky]
            needy = needy[:num_lucky]
        for resident in needy:
            self._custody.grow(resident)
            builder.write_pages(resident, len(resident.pages) - 1, len(resident.pages))
            self._custody.window.open(builder, resident, 1)
        return rows

    def _num_ahead(self, builder: PlanBuilder, resident: Resident, most: int) -> int:
        """How many ids that a grammar forced are computed at once with the next position: as many as the step's budget allows
        and as find pages without anybody's loss."""
        wanted = min(resident.request.num_pending - 1, most)
        if wanted <= 0:
            return 0
        wanted = max(min(wanted, self._custody.window.room(resident) - 1), 0)
        first = len(resident.pages)
        while wanted > (room := self._custody.num_room(resident) - 1):
            if not self._custody.num_available:
                wanted = room
                break
            self._custody.grow(resident)
        if len(resident.pages) > first:
            builder.write_pages(resident, first, len(resident.pages))
        self._custody.window.open(builder, resident, 1 + wanted)
        return wanted

    def _make_room(self, num_pages: int, confirmed_step: int) -> None:
        """Retract the most junior until `num_pages` can be had; while one has a step in flight, wait for it first."""
        while num_pages > self._custody.num_available and not self._roster.is_retracting:
            victim = self._roster.most_junior()
            if victim is None:
                return
            num_pages -= victim.request.state is RequestState.DECODING and self._custody.num_room(victim) <= 0
            self._reservation.on_retraction(self._roster.running)
            self._roster.retract(victim)
            self.num_retractions += 1
            self._roster.settle(confirmed_step)
