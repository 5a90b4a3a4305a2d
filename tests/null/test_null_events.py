"""Cache events: who listens to them knows exactly which blocks the first tier holds, and finds their tokens."""

from __future__ import annotations

from typing import Any

import msgspec
from hypothesis import given
from null_driver import Driver, submit
from null_traces import Trace, World, play, trace_settings, traces, worlds

from sapwood.core.plan import EngineLimits
from sapwood.engine.null_model import EOS_ID, VOCAB_SIZE
from sapwood.kvcache.events import AllBlocksCleared, BlockRemoved, BlockStored
from sapwood.messages.types import Flush
from sapwood.scheduler import SchedulerOptions


class Listener:
    """Keeps the blocks that are announced: hash -> the tokens of the whole run up to the block's end."""

    def __init__(self) -> None:
        self.blocks: dict[int, tuple[int, ...]] = {}
        self.size = 0

    def hear(self, events: list[Any]) -> None:
        for event in events:
            match event:
                case BlockStored():
                    self._store(event)
                case BlockRemoved():
                    for name in event.block_hashes:
                        del self.blocks[name]
                case AllBlocksCleared():
                    self.blocks.clear()

    def _store(self, event: BlockStored) -> None:
        above = () if event.parent_block_hash is None else self.blocks[event.parent_block_hash]
        assert len(event.token_ids) == len(event.block_hashes) * event.block_size
        for number, name in enumerate(event.block_hashes):
            above += tuple(event.token_ids[number * event.block_size : (number + 1) * event.block_size])
            assert name not in self.blocks, "a block is announced twice"
            self.blocks[name] = above


def listened(driver: Driver) -> Listener:
    listener, step = Listener(), driver.scheduler.step

    def hearing(inputs: Any) -> Any:
        outcome = step(inputs)
        listener.hear(outcome.cache_events)
        index = driver.scheduler._custody.index
        assert len(listener.blocks) == len(index._keys)  # type: ignore[attr-defined]
        return outcome

    driver.scheduler.step = hearing  # type: ignore[method-assign]
    return listener


def test_blocks_come_with_their_tokens_and_go_when_evicted_or_flushed() -> None:
    limits = EngineLimits(2, 64, 8, 4, VOCAB_SIZE, (EOS_ID,))
    driver = Driver(limits, SchedulerOptions(kv_events=True))
    listener = listened(driver)
    driver.run(submit(1, [97] * 10, max_new_tokens=1))
    assert sorted(listener.blocks.values()) == [(97,) * 4, (97,) * 8]
    driver.run(submit(2, [98] * 30, max_new_tokens=1))
    assert all(tokens[0] == 98 for tokens in listener.blocks.values())
    driver.run(Flush(1))
    assert listener.blocks == {}


def test_the_wire_form_is_arrays_that_begin_with_a_name() -> None:
    event = BlockStored([1, 2], None, [7, 8, 9, 9], 2)
    assert msgspec.msgpack.decode(msgspec.msgpack.encode([0.5, [event]])) == [
        0.5,
        [["BlockStored", [1, 2], None, [7, 8, 9, 9], 2, None]],
    ]


@trace_settings(60)
@given(worlds(), traces(10))
def test_a_listener_always_knows_the_cache(world: World, trace: Trace) -> None:
    if world.options.cache == "chunk":
        return
    options = {name: getattr(world.options, name) for name in world.options.__slots__} | {"kv_events": True}
    changed = World(world.limits, SchedulerOptions(**options), world.overlap)
    listeners: list[Listener] = []
    make = World.driver

    class Heard(World):
        def driver(self, storage: Any = None) -> Driver:
            driver = make(self, storage)
            listeners.append(listened(driver))
            return driver

    play(Heard(changed.limits, changed.options, changed.overlap), trace)
    assert len(listeners) == 1
