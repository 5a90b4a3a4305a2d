"""Random traces of requests for a scheduler on the null engine, and what must be true of what comes back."""

from __future__ import annotations

import os
import random
from dataclasses import dataclass
from math import inf
from typing import Any

import numpy as np
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from null_driver import Driver, Heard, submit
from null_storage import SlowStorage

from sapwood.core.plan import EngineLimits, window_claim
from sapwood.core.sampling import LogprobOptions, TokenLogprobs
from sapwood.engine.null import NullOptions
from sapwood.engine.null_model import EOS_ID, VOCAB_SIZE, NullModel
from sapwood.kvcache.prefetch import PREFETCH_POLICIES
from sapwood.kvcache.tiers import WRITE_POLICIES, TierOptions
from sapwood.messages.types import Abort, Finish, Flush, Stop, Submit, ToWorker, Unpin
from sapwood.scheduler import SchedulerOptions
from sapwood.scheduler.policy import policies

MAX_LEN = 72
EOS_PROBABILITY = 0.05
WINDOWS = (1, 2, 5, 8, 16, 17, 30)


def trace_settings(max_examples: int) -> settings:
    """Moderate by default; SAPWOOD_LONG_TESTS multiplies the number of examples (and explores new ones)."""
    factor = int(os.environ.get("SAPWOOD_LONG_TESTS", "0"))
    return settings(
        max_examples=max_examples * max(factor, 1),
        derandomize=not factor,
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
    )


@dataclass(frozen=True)
class World:
    """One replica's shape."""

    limits: EngineLimits
    options: SchedulerOptions
    overlap: bool

    def driver(self, storage: SlowStorage | None = None) -> Driver:
        engine = NullOptions(eos_probability=EOS_PROBABILITY, is_racy=self.overlap)
        return Driver(self.limits, self.options, overlap=self.overlap, engine=engine, storage=storage)


@dataclass(frozen=True)
class Trace:
    """Messages by turn of the loop, and the server's early stops: number -> completion tokens. Made by `make_trace`."""

    seed: int
    num_arrivals: int
    messages: dict[int, list[ToWorker]]
    submits: dict[int, Submit]
    aborted: frozenset[int]
    stops: dict[int, int]

    def __repr__(self) -> str:
        return f"make_trace({self.seed}, {self.num_arrivals})"

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        printer.text(repr(self))


@st.composite
def worlds(draw: st.DrawFn, host_pages: tuple[int, ...] = (0, 0, 3, 64), windows: tuple[int, ...] = (0,)) -> World:
    """Small engines, down to a pool that holds little more than one request; with a window there are no tiers."""
    page_size = draw(st.sampled_from([1, 2, 3, 4, 16]))
    num_tokens = draw(st.sampled_from([48, 64, 72, 80, 100, 150, 250]))
    window = draw(st.sampled_from(windows))
    num_pages = max(num_tokens // page_size, 1)
    num_claims = draw(st.sampled_from([1, 1, 2, 3, 6])) if window else 0
    limits = EngineLimits(
        draw(st.sampled_from([1, 2, 4, 6])),
        MAX_LEN,
        num_pages,
        page_size,
        VOCAB_SIZE,
        (EOS_ID,),
        num_host_pages=0 if window else draw(st.sampled_from(host_pages)),
        window=window,
        num_window_pages=min(num_claims * window_claim(window, page_size) + draw(st.sampled_from([-2, 0, 1, 5])), num_pages)
        if window
        else 0,
    )
    options = SchedulerOptions(
        step_token_budget=draw(st.sampled_from([1, 3, 8, 16, None])),
        max_running_requests=draw(st.sampled_from([None, None, 1, 3])),
        policy=draw(st.sampled_from(list(policies))),
        aging_interval=draw(st.sampled_from([0, 1, 3, 16])),
        seed=draw(st.integers(0, 3)),
        priority_scheduling=draw(st.booleans()),
        low_priority_values_first=draw(st.booleans()),
        preemption_threshold=draw(st.sampled_from([None, 0, 1, 10])),
        mode=(mode := draw(st.sampled_from(["mixed", "prefill-first"]))),
        target_itl_s=draw(st.sampled_from([None, None, 1e-6, 0.01])) if mode == "mixed" else None,
        queue_timeout_s=draw(st.sampled_from([None, None, None, 0.02])),
        request_timeout_s=draw(st.sampled_from([None, None, None, 0.05])),
        max_queue=draw(st.sampled_from([None, None, None, 2])),
        cache=draw(st.sampled_from(["radix", "radix", "radix", "hash", "chunk"])),
        eviction=draw(st.sampled_from(["lru", "lfu", "slru", "fifo", "priority", "tlru"])),
        tiers=TierOptions(
            write_policy=draw(st.sampled_from(WRITE_POLICIES)),
            has_storage=draw(st.booleans()),
            prefetch=draw(st.sampled_from(PREFETCH_POLICIES)),
        ),
        init_new_token_ratio=draw(st.sampled_from([0.01, 0.01, 0.3, 1.0])),
        max_reserved_tokens=draw(st.sampled_from([1, 4, 4096])),
        follow_tokens=draw(st.sampled_from([1, 4, 32])),
        publish_tokens=draw(st.sampled_from([1, 8, 64])),
    )
    return World(limits, options, draw(st.booleans()))


def traces(max_arrivals: int = 16) -> st.SearchStrategy[Trace]:
    """Traces of up to so many arrivals."""
    return st.builds(make_trace, st.integers(0, 2**32 - 1), st.integers(1, max_arrivals))


def make_trace(seed: int, num_arrivals: int) -> Trace:
    """Requests that share prefixes and groups, some aborted (also before they are submitted), stopped, scored or replayed."""
    chance = random.Random(seed)
    model = NullModel(MAX_LEN, VOCAB_SIZE, EOS_PROBABILITY)
    bases = [[chance.randrange(97, 123) for _ in range(48)] for _ in range(2)]
    messages: dict[int, list[ToWorker]] = {}
    submits: dict[int, Submit] = {}
    aborted, stops = set[int](), dict[int, int]()
    turn = 0
    for _ in range(num_arrivals):
        turn += chance.choice([0, 0, 0, 1, 2, 9])
        first = len(submits) + 1
        prompt = chance.choice(bases)[: chance.choice([0, 4, 9, 16, 17, 30, 40, 48])]
        prompt = prompt + [chance.randrange(97, 100) for _ in range(chance.randrange(1, 8))]
        common = _common_facts(chance)
        for sample in range(chance.choice([1, 1, 1, 2, 3])):
            number = first + sample
            request = submit(number, prompt, group=first, sample_index=sample, **common)
            request = _maybe_replayed(chance, model, request, prompt)
            submits[number] = request
            messages.setdefault(turn, []).append(request)
            if chance.random() < 0.15:
                aborted.add(number)
                messages.setdefault(max(turn + chance.randrange(-2, 20), 0), []).insert(0, Abort([number]))
            elif chance.random() < 0.15:
                stops[number] = chance.randrange(1, 12)
        if chance.random() < 0.1:
            messages.setdefault(turn + chance.randrange(30), []).append(Flush(turn))
        if chance.random() < 0.1:
            messages.setdefault(turn + chance.randrange(30), []).append(Unpin([chance.choice("xy")]))
    return Trace(seed, num_arrivals, messages, submits, frozenset(aborted), stops)


def _common_facts(chance: random.Random) -> dict[str, object]:
    max_new = chance.choice([0, 1, 2, 5, 12, 20, 24, 30, 80])
    prompt_start = chance.choice([None, None, None, 0, 1, 5, 40, 70])
    return {
        "max_new_tokens": max_new,
        "min_new_tokens": min(chance.choice([0, 0, 4]), max_new),
        "temperature": chance.choice([0.0, 1.0]),
        "seed": chance.choice([1, 2]),
        "stop_token_ids": chance.choice([(), (), (101, 116)]),
        "ignore_eos": chance.random() < 0.3,
        "priority": chance.choice([0, 0, 0, 1, -1, 12]),
        "routing_key": chance.choice(["", "a", "b"]),
        "pin": chance.choice(["", "", "x", "y"]),
        "pin_s": chance.choice([0.02, 1000.0]),
        "queue_timeout_s": chance.choice([None, None, None, None, 0.003, 0.03]),
        "timeout_s": chance.choice([None, None, None, None, 0.004, 0.04]),
        "namespace": chance.choice(["", "", "", "tenant"]),
        "logprobs": LogprobOptions(output=chance.random() < 0.3, top_n=chance.choice([0, 2]), prompt_start=prompt_start),
    }


def _maybe_replayed(chance: random.Random, model: NullModel, request: Submit, prompt: list[int]) -> Submit:
    if chance.random() > 0.1 or len(prompt) + (request.params.max_new_tokens or 0) > MAX_LEN:
        return request
    completion = model.complete(prompt, request.params, request.sample_index)[:-1]
    emitted = completion[: chance.randrange(0, len(completion) + 1)]
    facts = {
        name: getattr(request.params, name)
        for name in ("max_new_tokens", "min_new_tokens", "temperature", "stop_token_ids", "ignore_eos", "seed")
    }
    names = ("sample_index", "priority", "namespace", "logprobs", "routing_key", "queue_timeout_s", "timeout_s", "pin", "pin_s")
    more = {name: getattr(request, name) for name in names}
    return submit(request.number, prompt + emitted, group=request.group, num_emitted=len(emitted), **facts, **more)


def play(
    world: World, trace: Trace, max_turns: int = 6000, driver: Driver | None = None, storage: SlowStorage | None = None
) -> Driver:
    """Run the trace to its end; the server's stops are sent when the tokens have been heard."""
    driver, stops = driver or world.driver(storage or SlowStorage(trace.seed, loss=0.1)), dict(trace.stops)
    last_turn = max(trace.messages)
    for turn in range(max_turns):
        messages = list(trace.messages.get(turn, ()))
        for number, num_tokens in list(stops.items()):
            heard = driver.heard.get(number)
            if heard is not None and len(heard.token_ids) >= num_tokens and not heard.finishes:
                del stops[number]
                messages.append(Stop(number, trace.submits[number].num_emitted + num_tokens))
        driver.tick(*messages)
        assert driver.num_stalls == 0, "work is left, nothing is in flight, and nothing was launched"
        if turn >= last_turn and driver.scheduler.idle and not driver.storage.is_busy:
            driver.tick(Unpin(["x", "y"]))
            return driver
    raise AssertionError(f"somebody starves: not idle after {max_turns} turns")


def judge(world: World, trace: Trace, driver: Driver) -> None:
    """Every request has what it would have had alone, and exactly one ending; every page is free or cached."""
    for number, request in trace.submits.items():
        judge_request(world, trace, driver, request, driver.heard.get(number, Heard()))
    stats = driver.scheduler.stats()
    assert (stats.num_running, stats.num_waiting) == (0, 0)
    assert stats.num_free_pages + stats.num_cached_pages == world.limits.num_pages
    assert stats.num_evictable_pages == stats.num_cached_pages
    assert not driver.engine.violations
    assert len(driver.answers) == sum(isinstance(message, Flush) for batch in trace.messages.values() for message in batch)


def judge_request(world: World, trace: Trace, driver: Driver, request: Submit, heard: Heard) -> None:
    number = request.number
    expected = driver.expected(request) if _fits(world, request) else []
    assert heard.token_ids == expected[: len(heard.token_ids)]
    if request.logprobs.output:
        assert heard.logprobs == expected_logprobs(driver.engine.model, request, heard.token_ids)
    if not heard.finishes:
        assert number in trace.stops and len(heard.token_ids) >= trace.stops[number]
        return
    finish = heard.finishes[0]
    assert len(heard.finishes) == 1
    if finish.kind == "abort":
        assert number in trace.aborted
    elif not _fits(world, request):
        assert finish.kind == "error" and finish.status == 400
    elif finish.kind == "error":
        judge_refusal(world, request, heard, finish)
    else:
        assert finish.kind in ("stop", "length") and heard.token_ids == expected
        if finish.kind == "stop":
            assert finish.matched == heard.token_ids[-1]
        judge_report(driver.engine.model, request, heard)


def judge_refusal(world: World, request: Submit, heard: Heard, finish: Finish) -> None:
    """Nobody is refused but for a limit that was set, and the limits of the queue do not touch who has begun."""
    options = world.options
    may_wait_s, may_take_s = (
        min(limit or inf, own or inf)
        for limit, own in ((options.queue_timeout_s, request.queue_timeout_s), (options.request_timeout_s, request.timeout_s))
    )
    match finish.status:
        case 408:
            assert may_take_s < inf and f"{may_take_s:g} s" in finish.message
        case 429:
            assert options.max_queue is not None and not heard.token_ids
        case _:
            assert finish.status == 503 and may_wait_s < inf and not heard.token_ids


def judge_report(model: NullModel, request: Submit, heard: Heard) -> None:
    start = request.logprobs.prompt_start
    if start is None or request.num_emitted:
        assert not heard.prompt_logprobs
        return
    ids = np.frombuffer(request.token_ids, dtype="<i4")
    contexts = model.contexts(model.content(ids), 0)
    wanted = [
        model.logprobs(contexts[p - 1], int(ids[p]), request.logprobs) if p else TokenLogprobs(int(ids[0]), None)
        for p in range(min(start, len(ids)), len(ids))
    ]
    assert heard.prompt_logprobs == [wanted]


def expected_logprobs(model: NullModel, request: Submit, token_ids: list[int]) -> list[TokenLogprobs]:
    known = np.frombuffer(request.token_ids, dtype="<i4").tolist()
    entries = []
    for token_id in token_ids:
        context = model.contexts(model.content(np.asarray(known, dtype=np.int32)), len(known) - 1)[0]
        entries.append(model.logprobs(context, token_id, request.logprobs))
        known.append(token_id)
    return entries


def _fits(world: World, request: Submit) -> bool:
    num_prompt = len(request.token_ids) // 4 - request.num_emitted
    max_len = num_prompt + (request.params.max_new_tokens or 0)
    num_positions = max_len - 1 if request.params.max_new_tokens else max_len
    return max_len <= world.limits.max_len and num_positions <= world.limits.longest_kv
