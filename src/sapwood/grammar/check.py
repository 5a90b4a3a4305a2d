"""What the server asks before it accepts a constrained request: does it compile, and soon enough?

Owns a thread and the verdicts on the latest constraints; knows no vocabulary. Invariant: the event loop never waits for a
compiler, and nobody waits longer than the limit for a verdict.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from concurrent.futures import ThreadPoolExecutor

import msgspec
from llguidance import LLMatcher

from sapwood.core.constraint import Constraint, validate_constraint
from sapwood.errors import InvalidRequest
from sapwood.grammar.api import GrammarOptions
from sapwood.grammar.guidance import parser_limits, refusal
from sapwood.grammar.source import to_source

NUM_VERDICTS = 256
MAX_BACKLOG = 32
"""Constraints that may wait for the thread; more are refused until it has caught up."""


def check_constraint(constraint: Constraint, options: GrammarOptions) -> None:
    """Raise InvalidRequest unless the constraint compiles, as far as that can be said without a vocabulary."""
    error = LLMatcher.validate_grammar(to_source(constraint, options), None, limits=parser_limits(options.limits))
    if error and not error.startswith("WARNING"):
        raise refusal(constraint, error)


class ConstraintChecker:
    """Checks in a thread of its own, and remembers. With `is_on` false every constraint is refused."""

    def __init__(self, options: GrammarOptions | None = None, *, is_on: bool = True) -> None:
        self._options = options or GrammarOptions()
        self._is_on = is_on
        self._thread = ThreadPoolExecutor(1, "sapwood-constraints")
        self._num_open = 0
        self._verdicts: OrderedDict[Constraint, InvalidRequest | None] = OrderedDict()

    async def check(self, constraint: Constraint, vocab_size: int) -> None:
        """Raise InvalidRequest naming the kind, and saying what is wrong."""
        if not self._is_on:
            message = f"{constraint.kind}: constraints are switched off here (--grammar-backend none); leave it out"
            raise InvalidRequest(message, param=constraint.kind)
        validate_constraint(constraint, vocab_size)
        key = msgspec.structs.replace(constraint, starts_after=())
        if key not in self._verdicts:
            self._verdicts[key] = await self._verdict(key)
            if len(self._verdicts) > NUM_VERDICTS:
                self._verdicts.popitem(last=False)
        self._verdicts.move_to_end(key)
        found = self._verdicts[key]
        if found is not None:
            raise InvalidRequest(found.message, param=found.param)

    async def _verdict(self, constraint: Constraint) -> InvalidRequest | None:
        if self._num_open >= MAX_BACKLOG:
            raise InvalidRequest("too many new constraints at once; send the request again", param=constraint.kind)
        self._num_open += 1
        work = asyncio.get_running_loop().run_in_executor(self._thread, check_constraint, constraint, self._options)
        work.add_done_callback(self._note_end)
        limit_s = self._options.limits.compile_s
        try:
            await asyncio.wait_for(asyncio.shield(work), limit_s)
        except TimeoutError:
            message = f"{constraint.kind} takes more than {limit_s:g} s to compile; make it simpler"
            return InvalidRequest(message, param=constraint.kind)
        except InvalidRequest as error:
            return error
        return None

    def _note_end(self, work: asyncio.Future[None]) -> None:
        self._num_open -= 1
        if not work.cancelled():
            work.exception()  # somebody gave up waiting for it
