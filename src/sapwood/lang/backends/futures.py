"""Jobs made of jobs: what is made of a result, and work that begins when other work has ended.

Owns nothing. Invariant: whatever is raised on the way is raised by the last future.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

from sapwood.lang.backends.base import Job

A = TypeVar("A")
B = TypeVar("B")


def mapped(source: Future[A], make: Callable[[A], B]) -> Future[B]:
    """A future of what `make` makes of the result."""
    target: Future[B] = Future()
    target.set_running_or_notify_cancel()

    def finish(done: Future[A]) -> None:
        try:
            target.set_result(make(done.result()))
        except Exception as error:  # raised again by the future's result
            target.set_exception(error)

    source.add_done_callback(finish)
    return target


def chained(first: Job[A], then: Callable[[A], Job[B]]) -> Job[B]:
    """The job that `then` begins with the result of `first`; cancelling it cancels whichever is running."""
    target: Future[B] = Future()
    target.set_running_or_notify_cancel()
    cancels = [first.cancel]

    def go_on(done: Future[A]) -> None:
        try:
            second = then(done.result())
        except Exception as error:  # raised again by the future's result
            target.set_exception(error)
            return
        cancels[0] = second.cancel
        second.future.add_done_callback(pass_on)

    def pass_on(done: Future[B]) -> None:
        error = done.exception()
        if error is None:
            target.set_result(done.result())
        else:
            target.set_exception(error)

    first.future.add_done_callback(go_on)
    return Job(target, lambda: cancels[0]())
