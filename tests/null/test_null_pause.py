"""A replica that is paused again and again loses nothing, whether requests are frozen or retracted."""

from __future__ import annotations

import pytest
from null_driver import Driver, submit

from sapwood.engine.null_model import null_limits
from sapwood.messages.types import Abort, Continue, Pause
from sapwood.scheduler import SchedulerOptions


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("retract", [False, True])
def test_a_crowd_that_is_paused_again_and_again_gets_the_same_tokens(overlap: bool, retract: bool) -> None:
    driver = Driver(null_limits(num_slots=5, num_pages=40, page_size=8), SchedulerOptions(step_token_budget=24), overlap=overlap)
    requests = [submit(n, list(range(n % 7, n + 3)), max_new_tokens=1 + n % 13) for n in range(1, 41)]
    driver.tick(*requests)
    for number in range(30):
        driver.tick(Pause(100 + number, retract))
        for _ in range(3):
            driver.tick()
        driver.num_stalls = 0  # nothing is launched although work is left: that is what a pause is
        driver.tick(Continue(200 + number))
        driver.tick()
    driver.tick(Abort([40]))
    driver.run()
    assert sum(answer.ok for answer in driver.answers) == 60
    for request in requests[:-1]:
        assert driver.heard[request.number].token_ids == driver.expected(request)
