"""The laws of scheduling, on random traces: pages, endings, progress, and output that does not depend on company."""

from __future__ import annotations

import pytest
from hypothesis import given
from null_traces import Trace, World, judge, play, trace_settings, traces, worlds

from sapwood.scheduler import ranking


@trace_settings(250)
@given(worlds(), traces())
def test_whatever_arrives_the_laws_hold(world: World, trace: Trace) -> None:
    driver = play(world, trace)
    judge(world, trace, driver)


@trace_settings(60)
@given(worlds(), traces(40))
def test_they_hold_where_orders_of_the_queue_are_used_again(world: World, trace: Trace) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ranking, "REQUESTS_PER_USE", 2)
        driver = play(world, trace)
    judge(world, trace, driver)
