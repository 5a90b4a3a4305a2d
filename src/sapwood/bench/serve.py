"""A load generator: sends requests to an OpenAI-compatible server, each when its time has come, and times what streams back.

Owns the clock and the report; what is asked comes from `conversations`. Invariant: every request is in the report, as answered or
as failed, and latencies are those of answered ones.
"""

from __future__ import annotations

import asyncio
import time
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import msgspec
from rich.table import Table

from sapwood.bench.conversations import Conversation, Turn
from sapwood.bench.http import Endpoint, stream_events
from sapwood.bench.machine import Machine, machine
from sapwood.bench.measure import Percentiles, percentiles
from sapwood.bench.show import grid, latency_row, number, seconds


@dataclass(slots=True)
class Answered:
    """One request: when it was sent and when text came, what the server counted (None: it did not say), what went wrong."""

    sent_s: float
    moments: list[float] = field(default_factory=list)
    ended_s: float = 0.0
    text: str = ""
    prompt_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int | None = None
    error: str = ""


class Choice(msgspec.Struct):
    """A choice of a streamed event."""

    text: str | None = None


class Details(msgspec.Struct):
    """How much of the prompt was cached."""

    cached_tokens: int | None = None


class Counts(msgspec.Struct):
    """The usage of a call."""

    prompt_tokens: int = 0
    completion_tokens: int = 0
    prompt_tokens_details: Details | None = None


class Event(msgspec.Struct):
    """One event of a streamed completion."""

    choices: list[Choice] = []
    usage: Counts | None = None
    error: Any = None


class ServeReport(msgspec.Struct, frozen=True, kw_only=True):
    """Latencies in seconds: time to first token, per further token of a request (TPOT), between events with text (ITL), end to
    end. `hit_rate` is the share of prompt tokens that were cached, None where the server does not tell."""

    machine: Machine
    workload: str
    num_requests: int
    num_failed: int
    errors: list[str]
    duration_s: float
    requests_per_s: float
    output_tokens_per_s: float
    total_tokens_per_s: float
    prompt_tokens: int
    output_tokens: int
    hit_rate: float | None
    ttft: Percentiles
    tpot: Percentiles
    itl: Percentiles
    e2e: Percentiles


class Observations(msgspec.Struct, frozen=True, kw_only=True):
    """All latencies of answered requests, as in the report, and when their tokens came: pairs of seconds after the first request
    was sent and tokens, where an answer's tokens are shared evenly by its events with text."""

    ttft: list[float]
    tpot: list[float]
    itl: list[float]
    e2e: list[float]
    tokens: list[tuple[float, float]]


class Load:
    """A run of conversations against one endpoint, at most `max_concurrency` requests at a time (None: no limit). `open` are
    those that were sent and have not ended, `answers` those of conversations that have."""

    def __init__(self, target: Endpoint, model: str | None, max_concurrency: int | None) -> None:
        self._target, self._model = target, model
        self._gate = asyncio.Semaphore(max_concurrency) if max_concurrency else None
        self._decoder = msgspec.json.Decoder(Event)
        self.open: list[Answered] = []
        self.answers: list[Answered] = []

    async def run(self, conversations: list[Conversation]) -> float:
        """Hold them all; returns the seconds from the start to the last answer."""
        began_s = time.perf_counter()
        await asyncio.gather(*(self._hold(conversation, began_s) for conversation in conversations))
        return time.perf_counter() - began_s

    async def _hold(self, conversation: Conversation, began_s: float) -> None:
        await asyncio.sleep(began_s + conversation.arrival_s - time.perf_counter())
        await self._go_on(conversation.first, "")

    async def _go_on(self, turn: Turn, history: str) -> None:
        """One turn, then all that wait for its answer."""
        prompt = turn.prompt if isinstance(turn.prompt, list) else history + turn.prompt
        answer = await self.ask(prompt, turn.num_new)
        self.answers.append(answer)
        if turn.then and not answer.error:
            said = f"{prompt}{answer.text}"
            await asyncio.gather(*(self._pause(following, said) for following in turn.then))

    async def _pause(self, turn: Turn, history: str) -> None:
        await asyncio.sleep(turn.pause_s)
        await self._go_on(turn, history)

    async def ask(self, prompt: list[int] | str, num_new: int) -> Answered:
        """One request, streamed to its end; what goes wrong is in the answer."""
        named = {} if self._model is None else {"model": self._model}
        fields = {**named, "prompt": prompt, "max_tokens": num_new, "temperature": 0.0, "ignore_eos": True}
        body = msgspec.json.encode({**fields, "stream": True, "stream_options": {"include_usage": True}})
        async with AsyncExitStack() as stack:
            if self._gate is not None:
                await stack.enter_async_context(self._gate)
            answer = Answered(time.perf_counter())
            self.open.append(answer)
            try:
                async for payload in stream_events(self._target, body):
                    self._take(answer, payload)
            except (OSError, msgspec.MsgspecError) as error:
                answer.error = str(error) or type(error).__name__
            answer.ended_s = time.perf_counter()
            self.open.remove(answer)
        return answer

    def _take(self, answer: Answered, payload: bytes) -> None:
        event = self._decoder.decode(payload)
        if event.error is not None:
            raise ConnectionError(f"the server failed: {event.error}")
        text = "".join(choice.text or "" for choice in event.choices)
        if text:
            answer.moments.append(time.perf_counter())
            answer.text += text
        if event.usage is not None:
            answer.prompt_tokens, answer.output_tokens = event.usage.prompt_tokens, event.usage.completion_tokens
            details = event.usage.prompt_tokens_details
            answer.cached_tokens = details.cached_tokens if details else None


def measure_serve(
    target: Endpoint, model: str | None, name: str, load: list[Conversation], max_concurrency: int | None
) -> ServeReport:
    """Send the load named `name`, wait for all answers, report."""
    return summarise(name, *hold(target, model, load, max_concurrency))


def hold(
    target: Endpoint, model: str | None, load: list[Conversation], max_concurrency: int | None
) -> tuple[list[Answered], float]:
    """Send a load; returns all answers and how long it took, in seconds."""

    async def run() -> tuple[list[Answered], float]:
        generator = Load(target, model, max_concurrency)
        duration_s = await generator.run(load)
        return generator.answers, duration_s

    return asyncio.run(run())


def observe(answers: list[Answered]) -> Observations:
    """What was seen of those requests that were answered."""
    good = [answer for answer in answers if not answer.error]
    heard = [answer for answer in good if answer.moments]
    began_s = min((answer.sent_s for answer in answers), default=0.0)
    return Observations(
        ttft=[a.moments[0] - a.sent_s for a in heard],
        tpot=[(a.ended_s - a.moments[0]) / (a.output_tokens - 1) for a in heard if a.output_tokens > 1],
        itl=[after - before for a in heard for before, after in pairwise(a.moments)],
        e2e=[a.ended_s - a.sent_s for a in good],
        tokens=[(moment - began_s, a.output_tokens / len(a.moments)) for a in heard for moment in a.moments],
    )


def summarise(name: str, answers: list[Answered], duration_s: float) -> ServeReport:
    """The report of all requests of a run."""
    good = [answer for answer in answers if not answer.error]
    prompt_tokens, output_tokens = (sum(getattr(a, what) for a in good) for what in ("prompt_tokens", "output_tokens"))
    cached = [answer.cached_tokens for answer in good if answer.cached_tokens is not None]
    seen = observe(answers)
    return ServeReport(
        machine=machine(),
        workload=name,
        num_requests=len(answers),
        num_failed=len(answers) - len(good),
        errors=sorted({answer.error for answer in answers if answer.error})[:3],
        duration_s=duration_s,
        requests_per_s=len(good) / duration_s,
        output_tokens_per_s=output_tokens / duration_s,
        total_tokens_per_s=(prompt_tokens + output_tokens) / duration_s,
        prompt_tokens=prompt_tokens,
        output_tokens=output_tokens,
        hit_rate=sum(cached) / prompt_tokens if cached and prompt_tokens else None,
        ttft=percentiles(seen.ttft),
        tpot=percentiles(seen.tpot),
        itl=percentiles(seen.itl),
        e2e=percentiles(seen.e2e),
    )


def serve_tables(report: ServeReport) -> list[Table]:
    """The report for people."""
    hits = "not told" if report.hit_rate is None else f"{report.hit_rate:.1%}"
    totals = [
        ("requests", f"{report.num_requests} ({report.num_failed} failed)"),
        ("duration", seconds(report.duration_s)),
        ("requests/s", number(report.requests_per_s)),
        ("output tokens/s", number(report.output_tokens_per_s)),
        ("tokens/s", number(report.total_tokens_per_s)),
        ("prompt tokens", f"{report.prompt_tokens:,}"),
        ("cached", hits),
        *(("error", error[:100]) for error in report.errors),
    ]
    latencies = [
        latency_row(name, found)
        for name, found in (
            ("time to first token", report.ttft),
            ("per output token", report.tpot),
            ("inter-token", report.itl),
            ("end to end", report.e2e),
        )
    ]
    return [grid((report.workload, ""), totals), grid(("latency", "mean", "p50", "p90", "p99"), latencies)]
