"""The property test is worth something only if it finds bugs: each of these mistakes, planted by name, must make it fail."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import Phase, given, settings
from null_storage import SlowStorage
from null_traces import WINDOWS, Trace, World, judge, play, trace_settings, traces, worlds

from sapwood.core.request import Request, RequestState
from sapwood.errors import EngineFailed
from sapwood.kvcache.host_tier import HostTier
from sapwood.kvcache.prefetch import Prefetcher
from sapwood.kvcache.prefix import HostPage
from sapwood.kvcache.radix import RadixIndex
from sapwood.kvcache.tiers import Tiers
from sapwood.kvcache.window import WindowPages
from sapwood.scheduler.custody import Custody
from sapwood.scheduler.deadlines import Deadlines
from sapwood.scheduler.decode import Decoder
from sapwood.scheduler.inbox import Inbox
from sapwood.scheduler.plan_builder import PlanBuilder
from sapwood.scheduler.resident import Resident
from sapwood.scheduler.roster import Roster
from sapwood.scheduler.waiting import WaitingQueue
from sapwood.scheduler.window import SlidingWindow

Plant = Callable[[pytest.MonkeyPatch], None]


def pages_of_ended_requests_are_freed_without_draining(patch: pytest.MonkeyPatch) -> None:
    settle = Roster.settle
    patch.setattr(Roster, "settle", lambda self, confirmed: settle(self, 2**60))


def duplicates_are_freed_but_rows_not_repointed(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(PlanBuilder, "write_pages", _write_unless_repointing(PlanBuilder.write_pages))


def _write_unless_repointing(write: Callable[..., None]) -> Callable[..., None]:
    def planted(self: PlanBuilder, resident: Resident, first: int, end: int) -> None:
        if not any(first == start for start, _ in resident.duplicates):
            write(self, resident, first, end)

    return planted


def copied_rows_are_one_too_few(patch: pytest.MonkeyPatch) -> None:
    copy = PlanBuilder.copy_rows
    patch.setattr(
        PlanBuilder, "copy_rows", lambda self, source, resident, index, rows: copy(self, source, resident, index, rows - 1)
    )


def unconfirmed_tokens_are_published(patch: pytest.MonkeyPatch) -> None:
    publish = Custody.publish

    def planted(self: Custody, resident: Resident, *, soon: bool) -> None:
        request = resident.request
        confirmed, request.num_confirmed = request.num_confirmed, min(request.num_computed, request.num_ids)
        publish(self, resident, soon=soon)
        request.num_confirmed = confirmed

    patch.setattr(Custody, "publish", planted)


def a_full_hit_computes_nothing(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Request, "match_limit", property(lambda self: self.num_known))


def reused_positions_lose_their_prompt_logprobs(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Request, "match_limit", property(lambda self: self.num_known - 1))


def locks_are_never_dropped(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(RadixIndex, "unlock", lambda self, handle: None)


def namespaces_share(patch: pytest.MonkeyPatch) -> None:
    accept = Inbox._accept

    def planted(self: Inbox, submit: object) -> Request:
        request = accept(self, submit)  # type: ignore[arg-type]
        request.namespace = ""
        request.token_bytes[:4] = b"a\0\0\0"  # what another tenant wrote
        return request

    patch.setattr(Inbox, "_accept", planted)


def pages_are_handed_out_without_retracting(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Decoder, "_make_room", lambda self, num_pages, confirmed: None)


def a_retracted_request_starts_anew(patch: pytest.MonkeyPatch) -> None:
    requeue = Request.requeue

    def planted(self: Request) -> None:
        del self.token_bytes[self.num_prompt * 4 :]
        requeue(self)

    patch.setattr(Request, "requeue", planted)


def tombstones_are_forgotten(patch: pytest.MonkeyPatch) -> None:
    submit = Inbox._submit

    def planted(self: Inbox, message: object, events: list[object]) -> None:
        if self._tombstones.pop(message.number, None) is None:  # type: ignore[attr-defined]
            submit(self, message, events)  # type: ignore[arg-type]

    patch.setattr(Inbox, "_submit", planted)


def host_pages_are_given_away_while_a_plan_is_to_load_them(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Tiers, "hold", lambda self, entries: None)
    release = HostTier.release
    patch.setattr(HostTier, "release", lambda self, entry: release(self, entry) if entry.num_users else None)


def host_pages_are_given_away_while_storage_reads_them(patch: pytest.MonkeyPatch) -> None:
    store = Prefetcher.store

    def planted(self: Prefetcher, entries: list[HostPage]) -> None:
        store(self, entries)
        for entry in entries:
            self._tier.release(entry)
            self._tier.reserve(b"somebody else")

    patch.setattr(Prefetcher, "store", planted)


def pages_that_were_not_read_are_found(patch: pytest.MonkeyPatch) -> None:
    fetched = Prefetcher._fetched
    patch.setattr(Prefetcher, "_fetched", lambda self, search, count: fetched(self, search, len(search.entries)))


def saves_are_forgotten(patch: pytest.MonkeyPatch) -> None:
    move = PlanBuilder.move_pages
    patch.setattr(PlanBuilder, "move_pages", lambda self, saves, loads: move(self, saves[:-1], loads))


def deadlines_are_forgotten_at_admission(patch: pytest.MonkeyPatch) -> None:
    expired = Deadlines.expired

    def planted(self: Deadlines, now_s: float, live: dict[int, Request]) -> object:
        for request, error in expired(self, now_s, live):
            if request.state is not RequestState.DECODING:
                yield request, error
            else:
                request.end(RequestState.FAILED)

    patch.setattr(Deadlines, "expired", planted)


def a_retracted_requests_slot_is_handed_out_at_once(patch: pytest.MonkeyPatch) -> None:
    retract = Roster.retract

    def planted(self: Roster, resident: Resident) -> None:
        retract(self, resident)
        self._custody._free_slots.append(resident.slot)

    patch.setattr(Roster, "retract", planted)


def a_full_queue_throws_out_who_has_run(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(WaitingQueue, "most_junior_unstarted", lambda self: self._requests[-1] if self._requests else None)


def windows_are_one_token_too_short(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(WindowPages, "first_seen", lambda self, position: max(position - self._window + 2, 0) // self.pool.page_size)


def window_pages_are_freed_while_a_launched_step_reads_them(patch: pytest.MonkeyPatch) -> None:
    advance = SlidingWindow.advance

    def planted(self: SlidingWindow, resident: Resident) -> None:
        request = resident.request
        confirmed, request.num_confirmed = request.num_confirmed, request.num_computed
        advance(self, resident)
        request.num_confirmed = confirmed

    patch.setattr(SlidingWindow, "advance", planted)


def matches_are_accepted_without_their_window(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(WindowPages, "usable", lambda self, pages: len(pages))


def matched_windows_can_be_evicted(patch: pytest.MonkeyPatch) -> None:
    use = WindowPages.use

    def planted(self: WindowPages, pages: Iterable[int]) -> None:
        unused = list(self._unused)
        use(self, pages)
        self._unused |= dict.fromkeys(unused)

    patch.setattr(WindowPages, "use", planted)


def window_rows_are_not_repointed(patch: pytest.MonkeyPatch) -> None:
    rewrite = SlidingWindow.rewrite

    def planted(self: SlidingWindow, builder: PlanBuilder, resident: Resident, first: int, end: int) -> None:
        if not any(first == start for start, _ in resident.duplicates):
            rewrite(self, builder, resident, first, end)

    patch.setattr(SlidingWindow, "rewrite", planted)


def window_rows_of_partial_pages_are_not_copied(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(PlanBuilder, "copy_window_rows", lambda self, source, page, num_rows: None)


def a_tombstone_is_not_healed_by_a_duplicate(patch: pytest.MonkeyPatch) -> None:
    def planted(self: WindowPages, own: int, known: int) -> None:
        if self._users[own]:
            self.release([own])
            self.use([known])

    patch.setattr(WindowPages, "merge", planted)


def freed_pages_keep_their_window_page(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(WindowPages, "forget", lambda self, pages: None)


def everybody_may_have_any_number_of_window_pages(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(SlidingWindow, "fits", lambda self, request, match, *, with_source: True)


def chunks_take_what_others_were_promised(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(SlidingWindow, "_claim", lambda self, request: 1)


def pins_forget_their_window(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(SlidingWindow, "unpin", lambda self, pages: None)


PLANTS: list[Plant] = [
    deadlines_are_forgotten_at_admission,
    a_retracted_requests_slot_is_handed_out_at_once,
    a_full_queue_throws_out_who_has_run,
    pages_of_ended_requests_are_freed_without_draining,
    duplicates_are_freed_but_rows_not_repointed,
    copied_rows_are_one_too_few,
    unconfirmed_tokens_are_published,
    a_full_hit_computes_nothing,
    reused_positions_lose_their_prompt_logprobs,
    locks_are_never_dropped,
    namespaces_share,
    pages_are_handed_out_without_retracting,
    a_retracted_request_starts_anew,
    tombstones_are_forgotten,
]
TIER_PLANTS: list[Plant] = [
    host_pages_are_given_away_while_a_plan_is_to_load_them,
    host_pages_are_given_away_while_storage_reads_them,
    pages_that_were_not_read_are_found,
    saves_are_forgotten,
]
WINDOW_PLANTS: list[Plant] = [
    windows_are_one_token_too_short,
    window_pages_are_freed_while_a_launched_step_reads_them,
    matches_are_accepted_without_their_window,
    matched_windows_can_be_evicted,
    window_rows_are_not_repointed,
    window_rows_of_partial_pages_are_not_copied,
    a_tombstone_is_not_healed_by_a_duplicate,
    freed_pages_keep_their_window_page,
    everybody_may_have_any_number_of_window_pages,
    chunks_take_what_others_were_promised,
    pins_forget_their_window,
]

NARROW: dict[Plant, dict[str, Any]] = {a_full_queue_throws_out_who_has_run: {"max_queue": 2, "priority_scheduling": True}}
"""Options without which a bug cannot show; worlds drawn at random would have them too seldom."""


@pytest.mark.parametrize("plant", PLANTS + TIER_PLANTS + WINDOW_PLANTS, ids=lambda plant: plant.__name__)
def test_a_planted_bug_is_found(plant: Plant, monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch)
    host_pages = (2, 3, 6, 64) if plant in TIER_PLANTS else (0, 0, 3, 64)

    windows = WINDOWS if plant in WINDOW_PLANTS else (0,)

    @settings(trace_settings(1200), phases=[Phase.generate], report_multiple_bugs=False)
    @given(worlds(host_pages, windows), traces())
    def whatever_arrives_the_laws_hold(world: World, trace: Trace) -> None:
        world = replace(world, options=replace(world.options, **NARROW.get(plant, {})))
        storage = SlowStorage(trace.seed, loss=0.1)
        for _ in range(2 if world.options.tiers.has_storage and world.limits.num_host_pages else 1):  # then with full storage
            judge(world, trace, play(world, trace, max_turns=1500, storage=storage))

    with pytest.raises((AssertionError, EngineFailed, RuntimeError)):
        whatever_arrives_the_laws_hold()
