"""Which running requests decode in this step, and what happens when pages run out.

Owns the order in which pages are granted and who is retracted; does not admit. Invariant: the most senior running request is
never retracted and decodes as soon as one page can be had, so the batch always gets on.
"""

from __future__ import annotations

from sapwood.core.request import RequestState
from sapwood.scheduler.custody import Custody
from sapwood.scheduler.memory import Reservation
from sapwood.scheduler.plan_builder import PlanBuilder
from sapwood.scheduler.resident import seniority
from sapwood.scheduler.roster import Roster


class Decoder:
    """Fills a plan with decode rows."""

    def __init__(self, custody: Custody, roster: Roster, reservation: Reservation) -> None:
        self._custody = custody
        self._roster = roster
        self._reservation = reservation
        self.num_retractions = 0

    def fill(self, builder: PlanBuilder, confirmed_step: int) -> None:
        """One row per decoding request, each with the page it needs; where pages are short, the most senior come first."""
        rows = [r for r in self._roster.running if r.request.state is RequestState.DECODING and r.request.num_pending]
        needy = [resident for resident in rows if self._custody.needs_page(resident)]
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
        for resident in rows:
            builder.run(resident, 1)
        if rows:
            self._reservation.on_decode()

    def _make_room(self, num_pages: int, confirmed_step: int) -> None:
        """Retract the most junior until `num_pages` can be had; while one has a step in flight, wait for it first."""
        while num_pages > self._custody.num_available and not self._roster.is_retracting:
            victim = self._roster.most_junior()
            if victim is None:
                return
            num_pages -= victim.request.state is RequestState.DECODING and self._custody.needs_page(victim)
            self._reservation.on_retraction(self._roster.running)
            self._roster.retract(victim)
            self.num_retractions += 1
            self._roster.settle(confirmed_step)
