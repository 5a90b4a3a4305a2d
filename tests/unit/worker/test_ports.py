"""Ports: rank 0 shares what it hears before it acts, the other ranks hear the same, and news goes where it belongs."""

from __future__ import annotations

import time
from collections import deque
from itertools import count
from pathlib import Path

import zmq

from sapwood.core.plan import StepPlan, StepResult, no_copies
from sapwood.messages.channel import Receiver, Sender
from sapwood.messages.types import Answer, Drain, StepEvents, StepInputs, StepStats, Stop, TokenEvent, ToServer, ToWorker
from sapwood.scheduler.scheduler import StepOutcome
from sapwood.worker.overhaul import NoSteward
from sapwood.worker.ports import STATS_INTERVAL_S, FollowerPort, Outboxes, ServerPort, share_with_ranks


class Wire:
    """A control link between two ports of one process."""

    def __init__(self) -> None:
        self.queue: deque[bytes] = deque()

    def share(self, data: bytes | None = None) -> bytes:
        if data is None:
            return self.queue.popleft()
        self.queue.append(data)
        return data

    def close(self) -> None:
        pass


def test_followers_get_rank_zeros_inputs_and_news_goes_out_once(tmp_path: Path) -> None:
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    inbox: Receiver[ToWorker] = Receiver(context, f"ipc://{tmp_path}/w", ToWorker)
    server: Receiver[ToServer] = Receiver(context, f"ipc://{tmp_path}/s", ToServer)
    to_worker, to_server = Sender(context, f"ipc://{tmp_path}/w"), Sender(context, f"ipc://{tmp_path}/s")
    wire, stats = Wire(), StepStats(num_running=1)
    leader = ServerPort(
        inbox,
        Outboxes(to_server, to_server, 7),
        share_with_ranks(wire, 2),
        lambda: stats,
        lambda address: Sender(context, address),
    )
    follower = FollowerPort(wire, NoSteward())

    to_worker.send(Stop(4, 2))
    to_worker.send(Drain())
    results = [StepResult(1, [5, -1])]
    inputs = leader.gather(results, may_block=True)
    if len(inputs.messages) < 2:  # the second message was still on its way
        follower.gather([], may_block=True)
        rest = leader.gather([], may_block=True)
        inputs = StepInputs(messages=inputs.messages + rest.messages, results=results, now_s=rest.now_s)
        follower.gather([], may_block=False)
    else:
        assert follower.gather([], may_block=False) == inputs
    assert inputs.messages == [Stop(4, 2), Drain()] and inputs.results == results
    assert leader.draining and follower.draining

    event = TokenEvent(4, 0, [9])
    leader.publish(StepOutcome(None, [event], [Answer(1, True)]))
    leader.publish(StepOutcome(None, [], []))  # nothing new: nothing is sent
    news: list[ToServer] = []
    while len(news) < 2:
        news += server.receive(wait_s=5.0)
    assert news == [StepEvents(7, [event], stats), Answer(1, True)]
    assert server.receive(wait_s=0.05) == []
    context.destroy(linger=0)


def test_statistics_come_with_the_first_events_then_now_and_then_and_at_rest(tmp_path: Path) -> None:
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    inbox: Receiver[ToWorker] = Receiver(context, f"ipc://{tmp_path}/w", ToWorker)
    server: Receiver[ToServer] = Receiver(context, f"ipc://{tmp_path}/s", ToServer)
    to_server, counts = Sender(context, f"ipc://{tmp_path}/s"), count(1)
    outboxes = Outboxes(to_server, to_server, 0)
    port = ServerPort(
        inbox, outboxes, lambda inputs: None, lambda: StepStats(steps_total=next(counts)), lambda address: to_server
    )
    plan = StepPlan(1, (), (), no_copies(), ())

    def steps_told(outcome: StepOutcome) -> int | None:
        port.gather([], may_block=False)
        port.publish(outcome)
        (news,) = server.receive(wait_s=5.0)
        assert isinstance(news, StepEvents)
        return None if news.stats is None else news.stats.steps_total

    event = TokenEvent(4, 0, [9])
    assert steps_told(StepOutcome(plan, [], [])) == 1  # nothing was told of this epoch yet
    assert steps_told(StepOutcome(plan, [event], [])) == 2
    assert [steps_told(StepOutcome(plan, [event], [])) for _ in range(3)] == [None] * 3
    assert steps_told(StepOutcome(None, [event], [])) == 3  # nothing runs on
    assert steps_told(StepOutcome(plan, [event], [])) is None
    time.sleep(STATS_INTERVAL_S)
    assert steps_told(StepOutcome(plan, [event], [])) == 4
    context.destroy(linger=0)


def test_a_rank_alone_shares_nothing() -> None:
    wire = Wire()
    share_with_ranks(wire, 1)(StepInputs())
    assert not wire.queue
