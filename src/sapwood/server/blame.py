"""Which request takes the engine down, and when to stop trying.

Pure bookkeeping over numbers; knows neither processes nor messages. Invariants: a request is only blamed for a crash while it was
in the last launched plan alone, and after it was suspected twice in a row without a token in between; whoever makes progress is
cleared.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Mapping

MAX_STRIKES = 5
"""Crashes in a row, without a token or a culprit between them, after which there is no point in going on."""
BACK_OFF_S = (0.0, 0.5, 1.0, 2.0, 4.0)


class Blame:
    """Told of each crash, it says whom to replay alone next, and who is guilty."""

    def __init__(self) -> None:
        self.alone: int | None = None
        self._suspected: dict[int, int] = {}
        self._queue: deque[int] = deque()
        self.num_strikes = 0

    @property
    def is_hopeless(self) -> bool:
        """Whether trying again has no point."""
        return self.num_strikes >= MAX_STRIKES

    @property
    def back_off_s(self) -> float:
        """How long to wait before the next attempt."""
        return BACK_OFF_S[min(max(self.num_strikes - 1, 0), len(BACK_OFF_S) - 1)]

    def crashed(self, in_plan: Collection[int], counts: Mapping[int, int], *, has_served: bool) -> int | None:
        """A process died; `counts` tells how many ids each unfinished request has, `has_served` whether it did anything useful
        since it was started. Returns the culprit, if this proves one."""
        suspects = [number for number in in_plan if number in counts]
        self.num_strikes = 1 if has_served else self.num_strikes + 1
        if self.alone is not None:
            return self._crashed_alone(suspects, counts)
        stuck = [number for number in suspects if self._suspected.get(number) == counts[number]]
        self._suspected = {number: counts[number] for number in suspects}
        self._queue.extend(number for number in stuck if number not in self._queue)
        return None

    def next_alone(self, counts: Mapping[int, int]) -> int | None:
        """Whom to replay alone now; None: everybody together."""
        while self._queue and self._queue[0] not in counts:
            self._queue.popleft()
        self.alone = self._queue[0] if self._queue else None
        return self.alone

    def passed(self) -> None:
        """Who was replayed alone has got a token, or has ended, without harm."""
        if self.alone is not None:
            self._clear(self.alone)

    def _crashed_alone(self, suspects: list[int], counts: Mapping[int, int]) -> int | None:
        suspect, self.alone = self.alone, None
        if suspect is None or suspects != [suspect]:
            return None  # it died before it ran what it was given: another turn
        is_stuck = self._suspected.get(suspect) == counts[suspect]
        self._clear(suspect)
        if not is_stuck:
            return None
        self.num_strikes = 0
        return suspect

    def _clear(self, number: int) -> None:
        self.alone = None
        self._suspected.pop(number, None)
        if number in self._queue:
            self._queue.remove(number)
