"""What lives when a process is ready is not walked over again."""

from __future__ import annotations

import gc

import pytest

from sapwood.core.garbage import spare_the_living


@pytest.fixture(autouse=True)
def thawed():
    yield
    gc.unfreeze()


def test_later_passes_leave_out_what_is_alive():
    lasting = [[number] for number in range(1000)]
    spare_the_living()
    assert gc.get_freeze_count() > len(lasting)
    assert not any(found is lasting for found in gc.get_objects())


def test_new_cycles_are_still_collected():
    spare_the_living()
    cycle: list[object] = []
    cycle.append(cycle)
    del cycle
    assert gc.collect() >= 1
