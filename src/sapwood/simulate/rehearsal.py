"""Lets a simulated replica repeat a real run: the messages and step times of a step log, everything else its own.

Owns the comparison; knows no workload. Invariant: the replica computes its own results (whose rows sample, what, and when they
come back); of the log it is given what a simulation is given, too: requests, their completions, and how long steps take.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from sapwood.core.request import ID_BYTES
from sapwood.core.sampling import LogprobOptions
from sapwood.errors import ConfigError
from sapwood.messages.types import Submit, unpack_ids
from sapwood.scheduler.scheduler import Scheduler
from sapwood.scheduler.step_log import LoggedTurn, StepLogReader, plan_digest
from sapwood.simulate.replica import Replica


@dataclass(frozen=True, slots=True)
class Rehearsal:
    """What came of it. `first_difference` is the first step whose plan was another one (None: all plans are equal); hit rates are
    shares of prompt tokens."""

    num_steps: int
    first_difference: int | None
    real_hit_rate: float
    hit_rate: float


class RecordedTimes:
    """The measured times of a log's steps, one after the other."""

    turn_s, spread = 0.0, ()

    def __init__(self, durations_s: Iterator[float]) -> None:
        self._durations_s = durations_s

    def seconds(self, num_tokens: int, num_attended: int, num_read: int = 0) -> float:
        """The next step's."""
        return next(self._durations_s, 0.0)


def rehearse(path: str, *, overlap: bool) -> Rehearsal:
    """Repeat the run that wrote the step log at `path`, in the loop that it ran in. Raises ConfigError for what is no step log,
    and for one with what is not simulated: tiers of the cache, log-probabilities, several requests of one seed."""
    log = StepLogReader(path)
    if log.header.limits.num_host_pages:
        raise ConfigError(f"{path} was written with a hierarchical cache, which is not simulated; log a run without it")
    turns = list(log)
    real, completions = _completions(log, turns)
    durations_s = (result.duration_s for turn in turns for result in turn.inputs.results)
    replica = Replica(log.header.limits, log.header.options, RecordedTimes(durations_s), overlap)
    replica.completions.update(completions)
    num_steps = 0
    for turn in turns:
        replica.inbox.extend(turn.inputs.messages)
        replica.now_s = turn.inputs.now_s
        replica.turn()
        digest = plan_digest(replica.last_plan) if replica.last_plan is not None else b""
        if digest != turn.digest:
            return Rehearsal(num_steps, turn.step or num_steps + 1, _hit_rate(real), _hit_rate(replica.scheduler))
        num_steps += bool(turn.step)
    return Rehearsal(num_steps, None, _hit_rate(real), _hit_rate(replica.scheduler))


def _completions(log: StepLogReader, turns: list[LoggedTurn]) -> tuple[Scheduler, dict[int, tuple[int, list[int]]]]:
    """The scheduler after the logged run, and by seed, as replicas know their requests, what each request sampled."""
    scheduler = Scheduler(log.header.limits, log.header.options)
    seeds, found = dict[int, int](), dict[int, tuple[int, list[int]]]()
    for turn in turns:
        for message in turn.inputs.messages:
            if isinstance(message, Submit):
                if message.logprobs != LogprobOptions():
                    raise ConfigError("log-probabilities are not simulated; log a run without them")
                seed = seeds[message.number] = message.number if message.params.seed is None else message.params.seed
                if seed in found:
                    raise ConfigError("two requests of the log have one seed, by which replicas tell them apart; log other ones")
                num_prompt = len(message.token_ids) // ID_BYTES - message.num_emitted
                found[seed] = (num_prompt, unpack_ids(message.token_ids).tolist()[num_prompt:])
        for event in scheduler.step(turn.inputs).events:
            found[seeds[event.number]][1].extend(event.token_ids)
    return scheduler, {seed: (num_prompt, ids or [0]) for seed, (num_prompt, ids) in found.items()}


def _hit_rate(scheduler: Scheduler) -> float:
    stats = scheduler.stats()
    return stats.cached_tokens_total / max(stats.prompt_tokens_total, 1)
