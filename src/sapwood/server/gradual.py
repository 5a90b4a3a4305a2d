"""Large calls a slice at a time, so that other clients' streams go on meanwhile.

Knows the event loop and the registry; does not know dialects. Invariant: a call is accepted as a whole or not at all, and one of
few prompts never waits for anybody.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from dataclasses import replace
from typing import TypeVar

from sapwood.server.frontend import Frontend
from sapwood.server.limits import check_room
from sapwood.server.requests import GenerateRequest, resolve
from sapwood.server.stream import Stream

T = TypeVar("T")

SLICE = 64
"""Samples between two moments for others: some milliseconds of work."""


async def in_slices(items: Iterable[T]) -> AsyncIterator[T]:
    """The items; after every `SLICE` of them others get their turn."""
    for index, item in enumerate(items):
        if index and index % SLICE == 0:
            await asyncio.sleep(0)
        yield item


async def open_gradually(frontend: Frontend, request: GenerateRequest) -> Stream:
    """`Frontend.open`; what is wrong with any prompt is found before the first one runs."""
    size = max(SLICE * len(request.prompts) // max(request.num_samples, 1), 1)
    if len(request.prompts) <= size:
        return frontend.open(request)
    check_room(frontend.num_open, request.num_samples, frontend.limits.max_open_requests)
    prompts = tuple([resolve(prompt, frontend.limits) async for prompt in in_slices(request.prompts)])
    stream = frontend.open(replace(request, prompts=prompts[:size]))
    is_whole = False
    try:
        for first in range(size, len(prompts), size):
            await asyncio.sleep(0)
            frontend.open(replace(request, prompts=prompts[first : first + size]), stream)
        is_whole = True
    finally:
        if not is_whole:
            stream.close()
    return stream
