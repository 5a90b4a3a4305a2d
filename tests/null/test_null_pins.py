"""Pins: what a session will come back to stays, within its bound, until its time is over or somebody cannot run otherwise."""

from __future__ import annotations

from null_driver import Driver, submit

from sapwood.core.plan import EngineLimits
from sapwood.engine.null_model import EOS_ID, VOCAB_SIZE
from sapwood.messages.types import Flush, Unpin
from sapwood.scheduler import SchedulerOptions


def replica(num_pages: int = 32) -> Driver:
    return Driver(EngineLimits(4, 128, num_pages, 4, VOCAB_SIZE, (EOS_ID,)), SchedulerOptions(max_reserved_tokens=1))


def ids(name: int, length: int = 32) -> list[int]:
    return [name] * length


def crowd(driver: Driver, first: int, count: int = 12) -> None:
    """Others come and go, one after the other, and fill the pool with what they leave."""
    for number in range(first, first + count):
        driver.run(submit(number, [number % 250, *ids(number % 90, 31)], max_new_tokens=1))


def cached(driver: Driver, number: int, name: int) -> int:
    driver.run(submit(number, ids(name), max_new_tokens=1))
    return driver.heard[number].num_cached


def test_a_pinned_run_outlives_a_crowd() -> None:
    driver = replica()
    driver.run(submit(1, ids(200), max_new_tokens=1, pin="a", pin_s=1e6), submit(2, ids(201), max_new_tokens=1))
    crowd(driver, 10)
    assert cached(driver, 90, 201) == 0
    assert cached(driver, 91, 200) == 31
    driver.run(Unpin(["a", "unknown"]))
    crowd(driver, 100)
    assert cached(driver, 190, 200) == 0


def test_a_pin_ends_by_itself() -> None:
    driver = replica()
    driver.turn_s = 0.1
    driver.run(submit(1, ids(200), max_new_tokens=1, pin="a", pin_s=0.05))
    driver.tick()
    assert driver.scheduler.stats().num_pins == 0
    crowd(driver, 10)
    assert cached(driver, 90, 200) == 0


def test_a_name_holds_its_last_request_only() -> None:
    driver = replica()
    driver.run(submit(1, ids(200), max_new_tokens=1, pin="a", pin_s=1e6))
    driver.run(submit(2, ids(201), max_new_tokens=1, pin="a", pin_s=1e6))
    assert driver.scheduler.stats().num_pins == 1
    crowd(driver, 10)
    assert cached(driver, 90, 200) == 0 and cached(driver, 91, 201) == 31


def test_pins_take_half_of_the_pool_at_most_and_yield_to_who_cannot_run_otherwise() -> None:
    driver = replica()
    for name in range(6):
        driver.run(submit(name + 1, ids(200 + name), max_new_tokens=1, pin=str(name), pin_s=1e6))
    stats = driver.scheduler.stats()
    assert (stats.num_pins, stats.num_cached_pages - stats.num_evictable_pages) == (2, 16)
    driver.run(submit(50, ids(9, 110), max_new_tokens=10, ignore_eos=True))  # 30 of 32 pages
    assert driver.heard[50].finishes[0].kind == "length" and driver.heard[50].num_retractions == 0
    assert driver.scheduler.stats().num_pins == 0


def test_running_requests_take_pinned_pages_before_one_is_retracted() -> None:
    driver = replica()
    for name in range(2):
        driver.run(submit(name + 1, ids(200 + name), max_new_tokens=1, pin=str(name), pin_s=1e6))
    driver.run(*(submit(10 + n, ids(n, 20), max_new_tokens=20, min_new_tokens=20) for n in range(3)))
    assert driver.scheduler.stats().retractions_total == 0


def test_aborted_requests_pin_nothing_and_flushing_unpins() -> None:
    driver = replica()
    driver.run(submit(1, ids(200), max_new_tokens=1, pin="a", pin_s=1e6))
    driver.run(Flush(7))
    stats = driver.scheduler.stats()
    assert driver.answers[-1].ok and (stats.num_pins, stats.num_cached_pages) == (0, 0)
