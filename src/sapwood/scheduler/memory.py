"""The memory budget: how many pages running requests are still promised, and how many a waiting one must find.

Owns the decaying reservation ratio and the arithmetic in pages; does not hold pages. Invariant: a request alone in the pool is
always granted what it asks for, because nothing larger than the pool is accepted.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil

from sapwood.core.request import Request
from sapwood.scheduler.options import SchedulerOptions
from sapwood.scheduler.resident import Resident

RETRACT_LOOKAHEAD_TOKENS = 20


def kv_len(num_prompt: int, max_len: int) -> int:
    """Positions that a request computes at most: the last sampled id is never fed back."""
    return max_len - 1 if max_len > num_prompt else max_len


class Reservation:
    """Estimates how much of their allowed output running requests will really need.

    The estimate sinks while decoding goes well and rises to what the running batch shows when pages ran out; it starts afresh
    when the scheduler is idle.
    """

    def __init__(self, options: SchedulerOptions, page_size: int) -> None:
        self._page_size = page_size
        self._clip = options.max_reserved_tokens
        self._init = min(options.init_new_token_ratio * options.conservativeness, 1.0)
        self._floor = self._init * min(options.min_new_token_factor, 1.0)
        self._decay = (self._init - self._floor) / options.new_token_ratio_steps
        self.ratio = self._init

    def on_decode(self) -> None:
        """A step decoded without running out of pages."""
        self.ratio = max(self.ratio - self._decay, self._floor)

    def on_idle(self) -> None:
        """Nothing runs: what was learnt about the last batch says nothing about the next."""
        self.ratio = self._init

    def on_retraction(self, residents: Sequence[Resident]) -> None:
        """Pages ran out: reserve what the running requests have used so far, plus a little."""
        used = sum(resident.request.num_completion + RETRACT_LOOKAHEAD_TOKENS for resident in residents)
        allowed = sum(resident.request.max_len - resident.request.num_prompt for resident in residents)
        self.ratio = max(self.ratio, min(used / max(allowed, 1), 1.0))

    def promised_pages(self, residents: Sequence[Resident]) -> int:
        """Pages beyond those they hold that running requests are expected to need; at least those of their next step."""
        ratio, pages = self.ratio, self._pages
        return sum([pages(resident.request, ratio, len(resident.pages)) for resident in residents])

    def wanted_pages(self, request: Request) -> int:
        """Pages that a waiting request must find, matched ones included: all its known tokens and its full (clipped) output."""
        return self._pages(request, 1.0, 0)

    def _pages(self, request: Request, ratio: float, num_held: int) -> int:
        known, max_len = request.num_known, request.max_len  # this runs for every running request in every step
        left = max_len - known - (max_len > request.num_prompt)
        if left > self._clip:
            left = self._clip
        reserved = (ceil(left * ratio) or 1) if left > 0 else 0
        missing = -(-(known + reserved) // self._page_size) - num_held
        return missing if missing > 0 else 0
