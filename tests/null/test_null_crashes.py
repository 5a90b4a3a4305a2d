"""Crashes at any moment: every client gets exactly what it would have got without them, and one end."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from null_replica import CrashingReplica

from sapwood.core.sampling import LogprobOptions, SamplingParams
from sapwood.server.record import RequestRecord

LETTERS = b"abcdefgh "


@dataclass(frozen=True)
class Call:
    """What a client asks for."""

    ids: tuple[int, ...]
    params: SamplingParams
    logprobs: LogprobOptions


Move = tuple[str, Any]


@st.composite
def calls(draw: st.DrawFn) -> Call:
    shared = b"the same beginning " if draw(st.booleans()) else b""
    ids = (*shared, *draw(st.lists(st.sampled_from(LETTERS), min_size=1, max_size=12)))
    params = SamplingParams(
        max_new_tokens=draw(st.integers(0, 40)),
        min_new_tokens=0,
        temperature=draw(st.sampled_from((0.0, 1.0))),
        seed=draw(st.sampled_from((None, 5))),
        n=draw(st.sampled_from((1, 1, 2))),
        stop=draw(st.sampled_from(((), ("e",), ("ab", "zz"), ("th",)))),
        stop_regex=draw(st.sampled_from(((), ("[aeiou]{2}",)))),
        frequency_penalty=draw(st.sampled_from((0.0, 0.5))),
        ignore_eos=draw(st.booleans()),
    )
    start = draw(st.sampled_from((None, None, 0, 3)))
    wanted = LogprobOptions(output=draw(st.booleans()), top_n=2, prompt_start=None if start is None else min(start, len(ids) - 1))
    return Call(ids, params, wanted)


few = st.integers(1, 4)
moves = st.one_of(
    st.tuples(st.just("open"), calls()),
    st.tuples(st.just("worker"), few),
    st.tuples(st.just("worker"), few),
    st.tuples(st.just("detokenizer"), few),
    st.tuples(st.just("server"), few),
    st.tuples(st.just("all"), st.integers(1, 12)),
    st.tuples(st.just("kill worker"), st.none()),
    st.tuples(st.just("kill worker before it speaks"), few),
    st.tuples(st.just("kill detokenizer"), st.none()),
)


def play(moves: list[Move], overlap: bool, *, with_kills: bool) -> CrashingReplica:
    replica = CrashingReplica(overlap)
    for name, value in moves:
        match name:
            case "open":
                replica.open(list(value.ids), value.params, value.logprobs)
            case "worker" | "detokenizer" | "server":
                getattr(replica, name)(value)
            case "all":
                for _ in range(value):
                    replica.worker(100), replica.detokenizer(100), replica.server(100)
            case "leave":
                replica.leave(value)
            case _ if not with_kills:
                pass
            case "kill worker":
                replica.kill_worker()
            case "kill worker before it speaks":
                replica.worker(value, dies=True)
                replica.kill_worker()
            case "kill detokenizer":
                replica.kill_detokenizer()
    replica.finish()
    return replica


EXAMPLES = 2000 if os.environ.get("SAPWOOD_LONG_TESTS") else 150
generous = settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck))


@generous
@given(st.lists(moves, min_size=4, max_size=60), st.booleans())
def test_crashes_change_nothing_that_a_client_sees(moves: list[Move], overlap: bool) -> None:
    calm, stormy = play(moves, overlap, with_kills=False), play(moves, overlap, with_kills=True)
    assert stormy.heard == calm.heard
    assert all(len(heard.finishes) == 1 and heard.finishes[0].kind != "error" for heard in stormy.heard.values())
    assert stormy.frontend.dropped.gap == 0


@generous
@given(st.lists(st.one_of(moves, st.tuples(st.just("leave"), st.integers(0, 20))), min_size=4, max_size=60), st.booleans())
def test_clients_that_leave_amid_crashes_leave_nothing_behind(moves: list[Move], overlap: bool) -> None:
    replica = play(moves, overlap, with_kills=True)
    assert all(len(heard.finishes) == 1 for heard in replica.heard.values())
    assert {heard.finishes[0].kind for heard in replica.heard.values()} <= {"stop", "length", "abort"}


def test_a_story_with_every_crash() -> None:
    """One that is known to replay, so that the properties above do not hold for want of crashes."""
    call = Call(
        tuple(b"the same beginning"), SamplingParams(max_new_tokens=40, n=2, ignore_eos=True), LogprobOptions(output=True)
    )
    story: list[Move] = [("open", call), ("open", call), ("all", 5), ("kill worker", None), ("all", 4), ("worker", 2)]
    story += [
        ("kill worker before it speaks", 2),
        ("all", 5),
        ("kill detokenizer", None),
        ("worker", 1),
        ("kill detokenizer", None),
    ]
    calm, stormy = play(story, True, with_kills=False), play(story, True, with_kills=True)
    assert stormy.num_replays == 16 and calm.num_replays == 0
    assert stormy.heard == calm.heard and len(calm.heard) == 4
    assert all(len(heard.token_ids) == len(heard.logprobs) == 40 for heard in stormy.heard.values())
    assert stormy.frontend.dropped.stale > 0


def test_the_comparison_notices_what_is_given_out_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    """A planted bug: the detokenizer is not told how much text the client has."""
    call = Call((97,), SamplingParams(max_new_tokens=20, ignore_eos=True), LogprobOptions())
    story: list[Move] = [("open", call), ("all", 12), ("kill worker", None)]
    calm = play(story, False, with_kills=False)
    assert play(story, False, with_kills=True).heard == calm.heard
    monkeypatch.setattr(RequestRecord, "num_chars", 0)
    assert play(story, False, with_kills=True).heard != calm.heard
