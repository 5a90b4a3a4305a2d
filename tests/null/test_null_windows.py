"""The laws where some layers see only a window and have pages of their own: whatever arrives, nothing that is seen is missing."""

from __future__ import annotations

from hypothesis import given
from null_traces import WINDOWS, Trace, World, judge, play, trace_settings, traces, worlds


@trace_settings(250)
@given(worlds(windows=WINDOWS), traces())
def test_whatever_arrives_the_laws_hold_with_windows(world: World, trace: Trace) -> None:
    driver = play(world, trace)
    judge(world, trace, driver)
