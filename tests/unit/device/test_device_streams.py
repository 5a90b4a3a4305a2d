"""Streams: order, results, errors, the descriptor for polling, closing; graphs and the choice of a device."""

from __future__ import annotations

import select
import threading
import time

import pytest
import torch

from sapwood.device import Device, Stream, create_device
from sapwood.device.cpu import CpuDevice
from sapwood.device.wakeup import Wakeup
from sapwood.errors import ConfigError, EngineFailed

needs_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")
KINDS = ["cpu", pytest.param("cuda", marks=needs_cuda)]


@pytest.fixture(params=KINDS)
def device(request: pytest.FixtureRequest) -> Device:
    return create_device(request.param)


@pytest.fixture(params=[False, True], ids=["asynchronous", "synchronous"])
def stream(request: pytest.FixtureRequest, device: Device):
    stream = device.open_stream("compute", synchronous=request.param)
    yield stream
    stream.close()


def is_readable(stream: Stream, timeout_s: float = 0.0) -> bool:
    return bool(select.select([stream], [], [], timeout_s)[0])


def test_work_runs_in_order_and_returns_its_value(stream: Stream) -> None:
    order: list[int] = []

    def work(i: int) -> int:
        order.append(i)
        return i * i

    launched = [stream.submit(lambda i=i: work(i)) for i in range(100)]
    assert [one.result() for one in launched] == [i * i for i in range(100)]
    assert order == list(range(100))
    assert all(one.done() for one in launched)


def test_an_error_comes_out_of_result_and_the_stream_goes_on(stream: Stream) -> None:
    def fail() -> None:
        raise ValueError("broken step")

    failed, after = stream.submit(fail), stream.submit(lambda: "fine")
    with pytest.raises(ValueError, match="broken step"):
        failed.result()
    assert failed.done() and after.result() == "fine"


def test_the_descriptor_tells_of_finished_work(stream: Stream) -> None:
    assert not is_readable(stream)
    stream.submit(lambda: None).result()
    assert is_readable(stream, 5.0)
    stream.acknowledge()
    assert not is_readable(stream)
    for _ in range(3):
        stream.submit(lambda: None)
    assert is_readable(stream, 5.0)


def test_nothing_is_accepted_after_close(stream: Stream) -> None:
    last = stream.submit(lambda: 5)
    stream.close()
    stream.close()
    assert last.done() and last.result() == 5
    with pytest.raises(EngineFailed, match="closed"):
        stream.submit(lambda: None)


def test_the_submitting_thread_goes_on_meanwhile() -> None:
    stream = CpuDevice().open_stream("compute")
    gate = threading.Event()
    launched = stream.submit(lambda: gate.wait(10))
    assert not launched.done()
    gate.set()
    assert launched.result() is True
    stream.close()


def test_close_waits_for_what_was_submitted() -> None:
    stream = CpuDevice().open_stream("compute")
    finished: list[int] = []
    for i in range(3):
        stream.submit(lambda i=i: (time.sleep(0.02), finished.append(i)))
    stream.close()
    assert finished == [0, 1, 2]


def test_a_synchronous_stream_has_finished_when_submit_returns() -> None:
    stream = CpuDevice().open_stream("compute", synchronous=True)
    assert stream.submit(threading.get_ident).result() == threading.get_ident()
    with pytest.raises(KeyboardInterrupt):
        stream.submit(_interrupt)
    stream.close()


def _interrupt() -> None:
    raise KeyboardInterrupt


def test_a_graph_replays_on_what_its_tensors_hold(device: Device) -> None:
    source = torch.zeros(4, device=device.torch_device)
    target = torch.zeros(4, device=device.torch_device)

    def work() -> None:
        target.copy_(source * 2)

    graph = device.capture(work)
    for value in (1.0, 5.0):
        source.fill_(value)
        graph.replay()
        assert target.tolist() == [2 * value] * 4


def test_memory_facts_are_sane(device: Device) -> None:
    assert 0 < device.available_memory_bytes() <= device.total_memory_bytes()
    assert device.kind == device.torch_device.type


def test_names() -> None:
    assert create_device("auto").kind in ("cpu", "cuda")
    with pytest.raises(ConfigError, match="auto, cpu, cuda"):
        create_device("tpu")


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a host without a GPU")
def test_cuda_without_a_gpu_says_what_to_do() -> None:
    with pytest.raises(ConfigError, match="--device cpu"):
        create_device("cuda")


def test_a_wakeup_never_blocks_and_survives_its_closing() -> None:
    wakeup = Wakeup()
    for _ in range(70_000):  # more than a pipe holds
        wakeup.set()
    assert select.select([wakeup], [], [], 0)[0]
    wakeup.clear()
    assert not select.select([wakeup], [], [], 0)[0]
    wakeup.close()
    wakeup.close()
    wakeup.set()
    wakeup.clear()
