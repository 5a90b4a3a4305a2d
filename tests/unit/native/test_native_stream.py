"""The compute stream from Python: it finishes its work without the GIL and survives an interpreter that exits around it."""

from __future__ import annotations

import subprocess
import sys
import threading
import time

import numpy as np
import pytest

native = pytest.importorskip("sapwood.kernels.native._native")

HIDDEN, VOCABULARY, MAX_LEN = 32, 40, 64


def small_program(pool):
    """One layer without attention's usual company: embedding, heads, attention, logits, arg-max."""
    rng = np.random.default_rng(0)
    kv = native.KvPool(1, 1, 16, 8, "f32")
    program = native.Program(pool, kv, 2, MAX_LEN, VOCABULARY, 16, 2)

    def weight(rows, k):
        raw = rng.normal(size=(rows, k)).astype(np.float32).view(np.uint8).reshape(-1)
        return native.Weight.pack(pool, "f32", raw, rows, k)

    x, qkv, mixed, delta = (program.buffer(n) for n in (HIDDEN, 64, 32, HIDDEN))
    logits = program.buffer(VOCABULARY, logits=True)
    inner, codes, last = program.activations(HIDDEN), program.activations(32), program.activations(HIDDEN, logits=True)
    ones = np.ones(HIDDEN, np.float32)
    rope = native.Rope(np.ones(MAX_LEN * 8, np.float32), np.zeros(MAX_LEN * 8, np.float32))
    embedding = weight(VOCABULARY, HIDDEN)
    program.embed(embedding, 1.0, x)
    program.norm(x, ones, 1e-5, inner)
    program.linear([weight(64, HIDDEN)], inner, qkv)
    program.heads(qkv, 0, 2, 16, rope)
    program.attention(qkv, mixed, 0, 2, 0.25)
    program.quantise(mixed, codes)
    program.linear([weight(HIDDEN, 32)], codes, delta)
    program.norm(x, ones, 1e-5, last, delta)
    program.linear([embedding], last, logits)
    program.sample(logits)
    program.finish()
    return program, logits


def runs(*rows):
    return np.array(rows, np.int32).reshape(-1, 4)


def first_step(ids, count):
    tokens, places = np.array(ids, np.int32), np.arange(MAX_LEN, dtype=np.int32)
    return native.Step([(0, 0, tokens)], [(0, 0, places)], None, runs([0, 0, count, 1]))


def test_launched_steps_give_what_direct_runs_give():
    pool = native.ThreadPool(2, pin=False)
    direct, logits = small_program(pool)
    want = direct.run(first_step([3, 1, 4], 3))
    for i in range(4):
        want += direct.run(native.Step([], [], None, runs([0, 3 + i, 1, 1])))
    assert direct.rows(logits).shape == (1, VOCABULARY) and int(direct.rows(logits)[0].argmax()) == want[-1]
    program, _ = small_program(pool)
    stream = native.ComputeStream(pool)
    tickets = [stream.launch(program, first_step([3, 1, 4], 3))]
    tickets += [stream.launch(program, native.Step([], [], None, runs([0, 3 + i, 1, 1]))) for i in range(4)]
    results = [stream.wait(ticket) for ticket in tickets]
    assert [r.sampled[0] for r in results] == want and not any(r.error for r in results)
    assert stream.completed == 5


def test_a_step_that_does_not_fit_is_refused_at_launch():
    pool = native.ThreadPool(1, pin=False)
    program, _ = small_program(pool)
    stream = native.ComputeStream(pool)
    with pytest.raises(ValueError, match="slot 2"):
        stream.launch(program, native.Step([], [], None, runs([2, 0, 1, 0])))
    with pytest.raises(ValueError, match="outside the vocabulary"):
        stream.launch(program, first_step([VOCABULARY], 1))
    assert stream.completed == 0


@pytest.mark.parametrize("ending", ["pass", "del program", "del stream, pool", "stream.wait(ticket)"])
def test_the_interpreter_may_exit_with_steps_in_flight(ending):
    code = (
        f"import sys; sys.path.insert(0, {str(__file__.rsplit('/', 1)[0])!r})\n"
        "from test_native_stream import *\n"
        "pool = native.ThreadPool(2, pin=False)\n"
        "program, _ = small_program(pool)\n"
        "stream = native.ComputeStream(pool)\n"
        "for _ in range(50): ticket = stream.launch(program, first_step([3, 1, 4], 3))\n"
        f"{ending}\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr


def test_allowed_ids_bind_the_run_that_they_name():
    pool = native.ThreadPool(2, pin=False)
    program, _ = small_program(pool)
    free = program.run(first_step([3, 1, 4], 3))[0]
    places = np.arange(MAX_LEN, 2 * MAX_LEN, dtype=np.int32)
    for wanted in (0, 17, VOCABULARY - 1):
        bits = np.zeros(2, np.uint32)
        bits[wanted // 32] = 1 << wanted % 32
        masks = native.Masks(np.array([1], np.int32), 2)
        masks.release(bits[None])
        step = native.Step([], [(1, 0, places)], None, runs([1, 0, 2, 0], [0, 2, 1, 1]), masks=masks)
        assert program.run(step) == [wanted]
    assert program.run(native.Step([], [], None, runs([0, 2, 1, 1]))) == [free]
    with pytest.raises(ValueError, match="one bit for every id"):
        program.run(native.Step([], [], None, runs([0, 2, 1, 1]), masks=native.Masks(np.array([0], np.int32), 1)))


def test_sampling_waits_for_its_masks_and_nothing_else_does():
    pool = native.ThreadPool(2, pin=False)
    program, _ = small_program(pool)
    stream = native.ComputeStream(pool)
    first, masks = stream.launch(program, first_step([3, 1, 4], 3)), native.Masks(np.array([0], np.int32), 2)
    ticket = stream.launch(program, native.Step([], [], None, runs([0, 3, 1, 1]), masks=masks))
    stream.wait(first)
    time.sleep(0.05)
    assert stream.completed == first
    with pytest.raises(ValueError, match="one row for each"):
        masks.release(np.zeros((2, 2), np.uint32))
    masks.release(np.array([[0, 1 << 3]], np.uint32))
    assert stream.wait(ticket).sampled == [35]
    with pytest.raises(ValueError, match="released already"):
        masks.release(np.zeros((1, 2), np.uint32))


def test_a_stream_that_ends_lets_go_of_masks_that_nobody_released():
    pool = native.ThreadPool(2, pin=False)
    program, _ = small_program(pool)
    stream = native.ComputeStream(pool)
    for _ in range(3):
        masks = native.Masks(np.array([0], np.int32), 2)
        stream.launch(
            program, native.Step([], [(0, 0, np.arange(MAX_LEN, dtype=np.int32))], None, runs([0, 0, 1, 1]), masks=masks)
        )
    ended = threading.Event()

    def end() -> None:
        nonlocal stream
        del stream
        ended.set()

    threading.Thread(target=end, daemon=True).start()
    assert ended.wait(10.0)
