"""Who must leave the batch so that a more important request can enter it.

Owns the choice of victims and its threshold; does not admit. Invariant: only requests whose priority is lower by more than the
threshold are taken off, the most junior first, none unless together they make the room that is missing, and never for an elder
(whose rank is age, not importance).
"""

from __future__ import annotations

from sapwood.core.request import Request
from sapwood.scheduler.memory import Reservation
from sapwood.scheduler.options import SchedulerOptions
from sapwood.scheduler.resident import Resident, seniority
from sapwood.scheduler.roster import Roster


class Preemptor:
    """Retracts running requests for the sake of a waiting one."""

    def __init__(self, roster: Roster, reservation: Reservation, options: SchedulerOptions) -> None:
        self._roster = roster
        self._reservation = reservation
        self._threshold = options.preemption_threshold if options.honours_priority else None
        self.num_preemptions = 0

    def make_room(self, request: Request, *, num_slots: int = 0, num_pages: int = 0) -> bool:
        """Free so many slots and pages if less important requests hold them; True when somebody was retracted. What they held
        comes back when their last launched step is confirmed."""
        if self._threshold is None or request.is_elder:
            return False
        limit = request.priority - self._threshold
        victims: list[Resident] = []
        for resident in sorted((r for r in self._roster.running if r.request.priority < limit), key=seniority, reverse=True):
            if num_slots <= 0 and num_pages <= 0:
                break
            victims.append(resident)
            num_slots -= 1
            num_pages -= len(resident.pages) + self._reservation.promised_pages([resident])
        if not victims or num_slots > 0 or num_pages > 0:
            return False
        for victim in victims:
            self._roster.retract(victim)
        self.num_preemptions += len(victims)
        return True
