"""Where every live request is: waiting, running, or leaving (ended or retracted while a launched step may still touch it).

Owns these lists and the moves between them; does not decide who moves. Invariant: a request that is not terminal is in exactly
one of them; one that left with work to do waits again.
"""

from __future__ import annotations

from sapwood.core.request import Request, RequestState
from sapwood.scheduler.custody import Custody
from sapwood.scheduler.grammars import GrammarQueue
from sapwood.scheduler.progress import Progress
from sapwood.scheduler.resident import Resident, seniority
from sapwood.scheduler.timeline import TimelineLog
from sapwood.scheduler.waiting import WaitingQueue


class Roster:
    """The live requests by number and by place."""

    def __init__(self, custody: Custody, progress: Progress, timelines: TimelineLog) -> None:
        self._custody = custody
        self._progress = progress
        self.timelines = timelines
        self.grammars = GrammarQueue()
        self._residents: dict[int, Resident] = {}
        self._groups: dict[int, list[Resident]] = {}
        self.live: dict[int, Request] = {}
        self.waiting = WaitingQueue()
        self.running: list[Resident] = []
        self.leaving: list[Resident] = []

    @property
    def num_waiting(self) -> int:
        """Requests that wait, those included that were retracted and still have a step in flight."""
        return len(self.live) - len(self.running)

    @property
    def is_retracting(self) -> bool:
        """Whether pages of a retracted request are still on their way back."""
        return any(resident.request.state is RequestState.RETRACTED for resident in self.leaving)

    def add(self, request: Request, waited_s: float = 0.0) -> None:
        """A new request waits; one that is replayed has done so for `waited_s`."""
        request.arrived_s = self._progress.now_s - waited_s
        request.tokens_at_arrival = self._progress.num_computed_tokens
        self.live[request.number] = request
        self._custody.seek(request)
        self.grammars.seek(request)
        self.waiting.add(request)
        self.timelines.note(request, "queued")

    def admit(self, resident: Resident) -> None:
        """A waiting request got a slot and pages."""
        self.waiting.remove(resident.request)
        if resident.request.admitted_s is None:
            resident.request.admitted_s = self._progress.now_s
        self._residents[resident.request.number] = resident
        self.running.append(resident)
        self._groups.setdefault(resident.request.group, []).append(resident)
        self.timelines.note(resident.request, "admitted", resident.request.num_computed, len(resident.pages))

    def siblings(self, group: int) -> list[Resident]:
        """The running requests of one group."""
        return self._groups.get(group, [])

    def end(self, request: Request, state: RequestState, num_known: int | None = None) -> None:
        """A live request reaches a terminal state, wherever it is."""
        if request.state is RequestState.WAITING:
            self.waiting.remove(request)
        request.end(state, num_known)
        self._custody.tiers.storage.forget(request.number)
        self.grammars.forget(request)
        del self.live[request.number]
        resident = self._residents.pop(request.number, None)
        if resident is not None and not resident.is_leaving:
            self._leave(resident)
        self.timelines.note(request, state.value, request.num_computed, len(resident.pages) if resident is not None else 0)

    def retract(self, resident: Resident) -> None:
        """Take a running request off the batch; it waits again once its last launched step is confirmed."""
        resident.request.retract()
        self._leave(resident)
        self.timelines.note(resident.request, "retracted", resident.request.num_computed, len(resident.pages))

    def settle(self, confirmed_step: int) -> None:
        """Take back slots and pages of those whose last launched step is confirmed."""
        if not self.leaving:
            return
        staying = []
        for resident in self.leaving:
            if resident.last_step > confirmed_step:
                staying.append(resident)
                continue
            self._custody.release(resident)
            request = resident.request
            if request.state is RequestState.RETRACTED:
                del self._residents[request.number]
                request.requeue()
                self.waiting.add(request)
        self.leaving = staying

    def most_junior(self) -> Resident | None:
        """Whom to retract: the running request of lowest priority and least age, never the most senior one."""
        return max(self.running, key=seniority) if len(self.running) > 1 else None

    def _leave(self, resident: Resident) -> None:
        self.running.remove(resident)
        siblings = self._groups[resident.request.group]
        siblings.remove(resident)
        if not siblings:
            del self._groups[resident.request.group]
        resident.is_leaving = True
        self.leaving.append(resident)
