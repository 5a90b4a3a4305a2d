"""Which pages and slots belong to which request, and when they change hands.

Owns the page pool, the prefix index, the slots, and what drains until a step is confirmed; does not decide who is admitted or
retracted. Invariant: the law of pages (`violations` proves it), whatever is called in whatever order.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from sapwood.core.plan import EngineLimits
from sapwood.core.request import ID_BYTES, Request, RequestState
from sapwood.core.units import div_ceil
from sapwood.kvcache.audit import page_violations
from sapwood.kvcache.events import EventLog
from sapwood.kvcache.hierarchical import HierarchicalIndex
from sapwood.kvcache.pages import PagePool
from sapwood.kvcache.prefix import Match, PrefixIndex, prefix_indexes
from sapwood.kvcache.tiers import Tiers
from sapwood.scheduler.options import SchedulerOptions
from sapwood.scheduler.pins import Pin, Pins
from sapwood.scheduler.plan_builder import PlanBuilder
from sapwood.scheduler.resident import Resident
from sapwood.scheduler.window import make_windows


@dataclass(frozen=True, slots=True)
class Draining:
    """Pages to free, or an index path to unlock and pages whose window is read, once `step` is confirmed."""

    step: int
    pages: list[int]
    handle: Any = None
    seen: tuple[int, ...] = ()


class Custody:
    """Hands pages to requests, shares them through the prefix index, takes them back."""

    def __init__(self, limits: EngineLimits, options: SchedulerOptions) -> None:
        self._limits = limits
        self._options = options
        self._page_size = limits.page_size
        self._publish_pages = max(options.publish_tokens // limits.page_size, 1)
        self.events = EventLog(limits.page_size, is_on=options.kv_events)
        self.tiers = Tiers(limits.num_host_pages, limits.page_size * ID_BYTES, options.tiers)
        self.rebuild()

    def rebuild(self) -> None:
        """Begin again with every page and slot free; only while no request holds any and no step is in flight."""
        limits, options = self._limits, self._options
        self.pool = PagePool(limits.num_pages, limits.page_size)
        self.tiers.on_cleared()
        self.events.cleared()
        index = prefix_indexes.get(options.cache)(self.pool, options.eviction)
        self.index: PrefixIndex[Any] = index
        if index.is_sharing and (limits.num_host_pages or options.kv_events):
            self.index = HierarchicalIndex(index, self.tiers, self.events, limits.page_size)
        self.window = make_windows(limits, self.pool)
        self.index = self.window.over(self.index)
        self._free_slots = list(range(limits.num_slots - 1, -1, -1))
        self._draining: deque[Draining] = deque()
        self._unpointed: list[Resident] = []
        self.pins = Pins(self.index, self.window, limits.num_pages)
        self.now_s = 0.0

    # ------------------------------------------------------------------------------------------------- questions
    @property
    def num_available(self) -> int:
        """Pages that could be taken now: free ones and those of the index that nobody uses."""
        return self.pool.num_free + self.index.num_evictable

    @property
    def num_draining(self) -> int:
        """Pages that are freed when a launched step is confirmed."""
        return sum(len(item.pages) for item in self._draining)

    @property
    def num_free_slots(self) -> int:
        """Slots that no launched step can touch."""
        return len(self._free_slots)

    def match(self, request: Request, *, touch: bool = True) -> Match[Any]:
        """What the prefix index knows of a request's tokens."""
        return self.index.match(request.namespace, request.run(0, request.match_limit), touch=touch)

    def seek(self, request: Request) -> None:
        """Let storage be searched for what memory does not hold of a request that begins to wait."""
        if isinstance(self.index, HierarchicalIndex):
            self.index.seek(request.number, request.namespace, request.run(0, request.match_limit))

    def num_room(self, resident: Resident) -> int:
        """How many more positions a resident's pages hold."""
        return len(resident.pages) * self._page_size - resident.request.num_computed

    # ------------------------------------------------------------------------------------------------- taking
    def house(
        self, request: Request, match: Match[Any], num_wanted: int, num_promised: int, *, use_source: bool
    ) -> Resident | None:
        """Give a request a slot and the pages of its known tokens, if `num_wanted` pages fit beside those promised to others.

        The partly matched page is locked as `resident.source` only when asked for and when that still leaves room.
        """
        num_missing = num_wanted - len(match.pages)
        use_source = use_source and self.window.fits(request, match, with_source=True)
        if num_missing > self.num_available - num_promised or not self.window.fits(request, match, with_source=False):
            return None
        self.tiers.hold(match.host)  # locking and taking pages may push others out of the tiers
        lock = self.index.lock(match, with_source=use_source, priority=request.asked_priority)
        source = lock.source
        if source is not None and num_missing > self.num_available - num_promised:
            self.index.unlock(source)
            source = None
        if num_missing > self.num_available - num_promised:
            self.index.unlock(lock.handle)
            self.tiers.let_go(match.host)
            return None
        fresh = self._take(div_ceil(request.num_known, self._page_size) - len(match.pages))
        resident = Resident(request, self._free_slots.pop(), match.pages + fresh, len(match.pages), lock.handle, source)
        self.window.enter(resident)
        return resident

    def load(self, resident: Resident, match: Match[Any]) -> None:
        """Let the plan load what lower tiers hold of a resident's tokens into its own pages."""
        first = len(match.pages)
        num_new = self.tiers.load(match.host, resident.pages[first : first + len(match.host)])
        resident.request.note_tiers((len(match.host) - num_new) * self._page_size, num_new * self._page_size)

    def grow(self, resident: Resident) -> None:
        """One more page."""
        resident.pages += self._take(1)

    def _take(self, count: int) -> list[int]:
        if count > self.pool.num_free:
            self.index.evict(count - self.pool.num_free)
        return self.pool.take(count)

    # ------------------------------------------------------------------------------------------------- sharing
    def publish(self, resident: Resident, *, soon: bool) -> None:
        """Put confirmed full pages into the index; unless it should be `soon`, only when a few have gathered."""
        num_full = resident.request.num_confirmed // self._page_size
        if num_full - resident.num_shared < (1 if soon else self._publish_pages):
            return
        first = resident.num_shared
        replaced = self._insert(resident, num_full)
        if replaced:
            resident.duplicates.append((first, replaced))
            self._unpointed.append(resident)

    def _insert(self, resident: Resident, num_full: int) -> list[int]:
        """Move pages up to `num_full` to the index; returns those that were duplicates of what it knew."""
        first = resident.num_shared
        run = resident.request.run(first * self._page_size, num_full * self._page_size)
        pages, priority = resident.pages[first:num_full], resident.request.asked_priority
        insertion = self.index.insert(resident.handle, run, pages, priority=priority)
        if not insertion.is_taken:
            return []
        num_known = len(insertion.shared)
        replaced = resident.pages[first : first + num_known]
        resident.pages[first : first + num_known] = insertion.shared
        resident.handle, resident.num_shared = insertion.handle, num_full
        return replaced

    def repoint(self, builder: PlanBuilder) -> bool:
        """Let the plan write the index's pages into rows that still point to duplicates; steps before it may read these. Whether
        there were any."""
        if not self._unpointed:
            return False
        for resident in self._unpointed:
            if not resident.is_leaving:
                for first, replaced in resident.duplicates:
                    builder.write_pages(resident, first, first + len(replaced))
                    self.window.rewrite(builder, resident, first, first + len(replaced))
                    self._draining.append(Draining(builder.step - 1, replaced))
                resident.duplicates.clear()
        self._unpointed.clear()
        return True

    def move(self, builder: PlanBuilder, leave_by_s: float | None = None) -> None:
        """Let the plan carry pages between the tiers; with a deadline, when nobody computes any more, all that storage lacks."""
        if leave_by_s is not None and isinstance(self.index, HierarchicalIndex):
            self.tiers.leave(self.index.named_pages, leave_by_s)
        if self.tiers.has_moves:
            builder.move_pages(*self.tiers.take_moves(builder.step))

    def hold_source(self, resident: Resident, source_page: int, step: int) -> None:
        """Keep the page that `step` copies rows from until the copy is done, with its path where it is the index's."""
        self.window.hold([source_page])
        self._draining.append(Draining(step, [], resident.source, (source_page,)))
        resident.source = None

    # ------------------------------------------------------------------------------------------------- giving back
    def settle(self, confirmed_step: int) -> None:
        """Free what was waiting for steps up to `confirmed_step`."""
        self.tiers.settle(confirmed_step)
        while self._draining and self._draining[0].step <= confirmed_step:
            item = self._draining.popleft()
            self.window.let_go(item.seen)
            self.pool.give_back(item.pages)
            if item.handle is not None:
                self.index.unlock(item.handle)

    def release(self, resident: Resident) -> None:
        """Take slot and pages back; confirmed tokens stay in the index, the partly filled last page too."""
        num_confirmed = resident.request.num_confirmed
        num_full, num_rows = divmod(num_confirmed, self._page_size)
        if num_full > resident.num_shared:
            self.pool.give_back(self._insert(resident, num_full))
        for _, replaced in resident.duplicates:
            self.pool.give_back(replaced)
        resident.duplicates.clear()
        self.window.advance(resident)
        num_kept = resident.num_shared
        if num_rows and num_kept == num_full:
            tail = resident.request.run(num_confirmed - num_rows, num_confirmed)
            num_kept += self.index.insert_tail(
                resident.handle, tail, resident.pages[num_full], priority=resident.request.asked_priority
            )
        self._let_go(resident)
        self.pool.give_back(resident.pages[num_kept:])
        self._free_slots.append(resident.slot)

    def _let_go(self, resident: Resident) -> None:
        """Unlock a resident's path, unless somebody wants to come back to it."""
        request = resident.request
        is_pinned = bool(request.pin) and request.state is RequestState.FINISHED and self.index.is_sharing
        window_pages = self.window.leave(resident, is_pinned=is_pinned)
        if is_pinned:
            pin = Pin(resident.handle, resident.num_shared, self.now_s + request.pin_s, window_pages)
            self.pins.put(request.pin, pin)
        else:
            self.index.unlock(resident.handle)

    def tell_time(self, now_s: float) -> None:
        """A step begins at this moment of rank 0's clock."""
        self.now_s = self.tiers.now_s = now_s
        self.pins.expire(now_s)

    # ------------------------------------------------------------------------------------------------- audit
    def violations(self, residents: Iterable[Resident]) -> list[str]:
        """One line per broken law of pages, given everyone who holds a slot."""
        residents = list(residents)
        holders = {
            f"request {resident.request.number} in slot {resident.slot}": _private_pages(resident) for resident in residents
        }
        holders["draining duplicates"] = (page for item in self._draining for page in item.pages)
        handles = [resident.handle for resident in residents]
        handles += self.pins.handles
        handles += [item.handle for item in self._draining if item.handle is not None]
        seen = [list(item.seen) for item in self._draining]
        problems = self.window.violations(residents, seen, self.pins.window_pages, self.index)
        return page_violations(self.pool, self.index, holders, handles) + problems


def _private_pages(resident: Resident) -> Iterator[int]:
    yield from resident.pages[resident.num_shared :]
    for _, replaced in resident.duplicates:
        yield from replaced
