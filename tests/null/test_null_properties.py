"""The laws of scheduling, on random traces: pages, endings, progress, and output that does not depend on company."""

from __future__ import annotations

from hypothesis import given
from null_traces import Trace, World, judge, play, trace_settings, traces, worlds


@trace_settings(250)
@given(worlds(), traces())
def test_whatever_arrives_the_laws_hold(world: World, trace: Trace) -> None:
    driver = play(world, trace)
    judge(world, trace, driver)
