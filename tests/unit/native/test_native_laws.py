"""The law of batches on the native engine, to the bit: ids and log-probabilities do not depend on circumstances."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

pytest.importorskip("sapwood.kernels.native._native", reason="the native module is not built; see csrc/README.md")

from native_model import EOS, MAX_LEN, PAGE_SIZE, VOCAB_SIZE, Hand, Heard, ask, make_native

from sapwood.core.plan import EngineLimits
from sapwood.core.sampling import LogprobOptions, SamplingParams
from sapwood.engine.native_lifecycle import NativeTypes, create_native_engine
from sapwood.engine.native_runner import NativeEngine
from sapwood.messages.types import Submit
from sapwood.weights.catalog import resolve
from sapwood.weights.checkpoint import open_checkpoint

REAL_MODEL = "smollm2-135m-instruct"
GREEDY = SamplingParams(temperature=0.0, seed=0)
DRAWN = (
    SamplingParams(temperature=0.8, seed=3),
    SamplingParams(temperature=1.5, top_p=0.95, seed=4, frequency_penalty=0.5),
    SamplingParams(temperature=1.0, top_k=20, min_p=0.05, seed=5, repetition_penalty=1.3),
)


class Subject:
    """Engines of the same model on one and two threads, and the requests of the law."""

    def __init__(self, engines: dict[int, NativeEngine], requests: list[Submit]) -> None:
        self.engines, self.requests = engines, requests
        self.alone = {request.number: self.play([request])[request.number].content for request in requests}

    def play(self, requests: list[Submit], threads: int = 2, **options: object) -> dict[int, Heard]:
        return Hand(self.engines[threads], **options).run(requests)

    def check(self, heard: dict[int, Heard]) -> None:
        for number, one in heard.items():
            ids, logprobs, prompt_logprobs = self.alone[number]
            assert one.token_ids == ids
            assert one.logprobs == logprobs  # floats compared exactly
            assert one.prompt_logprobs == prompt_logprobs


def make_requests(vocab_size: int, count: int, longest: int, num_new: int) -> list[Submit]:
    """Prompts of all lengths; every third begins like the first one, so that batches share pages."""
    rng = np.random.default_rng(8)
    common = rng.integers(3, vocab_size, longest).tolist()
    requests = []
    for number in range(count):
        ids = rng.integers(3, vocab_size, int(rng.integers(1, longest))).tolist()
        if number % 3 == 0:
            ids = common[: longest - 1 - number] + ids[:5]
        params = GREEDY if number % 2 else DRAWN[number // 2 % 3]
        wanted = LogprobOptions(output=True, top_n=number % 4, token_ids=(7,), prompt_start=1 if number % 5 == 0 else None)
        params = SamplingParams(**{f: getattr(params, f) for f in params.__struct_fields__} | {"max_new_tokens": num_new})
        requests.append(ask(number, ids, params, wanted))
    return requests


def real_engine(threads: int) -> NativeEngine:
    checkpoint = open_checkpoint(resolve(REAL_MODEL))
    config = checkpoint.config
    limits = EngineLimits(32, 320, 32 * 20, 16, config.vocab_size, config.eos_token_ids)
    return create_native_engine(checkpoint, limits, max_rows=8192, types=NativeTypes(), threads=threads)


RANDOM = {
    "random": NativeTypes(),
    "int8 pages": NativeTypes("i8"),
    "16-bit activations": NativeTypes(quantization="int4", activation_bits=16),
}


@pytest.fixture(scope="module", params=[*RANDOM, pytest.param("real", marks=pytest.mark.real_model)])
def subject(request: pytest.FixtureRequest) -> Iterator[Subject]:
    if request.param != "real":
        engines, requests = (
            {n: make_native(n, types=RANDOM[request.param]) for n in (1, 2)},
            make_requests(VOCAB_SIZE, 32, 180, 24),
        )
    else:
        engines = {n: real_engine(n) for n in (1, 2)}
        requests = make_requests(engines[1].limits.vocab_size, 32, 200, 10)
    yield Subject(engines, requests)
    for engine in engines.values():
        engine.close()


def test_the_requests_are_worth_testing(subject: Subject) -> None:
    assert len({tuple(ids) for ids, _, _ in subject.alone.values()}) > 25
    assert sum(len(prompt_logprobs) for _, _, prompt_logprobs in subject.alone.values()) > 300


@pytest.mark.parametrize("overlap", [True, False])
def test_alone_and_in_a_batch_of_32(subject: Subject, overlap: bool) -> None:
    subject.check(subject.play(subject.requests, overlap=overlap))


def test_prompts_in_chunks_of_7(subject: Subject) -> None:
    subject.check(subject.play(subject.requests[:8], step_token_budget=7))
    subject.check(subject.play(subject.requests[8:], step_token_budget=39))


def test_prefixes_from_the_cache(subject: Subject) -> None:
    hand = Hand(subject.engines[2])
    subject.check(hand.run(subject.requests))
    again = hand.run(subject.requests)
    subject.check(again)
    assert sum(heard.num_cached for heard in again.values()) > 500


def test_on_one_thread(subject: Subject) -> None:
    subject.check(subject.play(subject.requests, threads=1))
    subject.check(subject.play(subject.requests[:3], threads=1))


def test_retracted_and_resumed() -> None:
    """With few pages and none reserved, requests give their pages back and start again."""
    requests = make_requests(VOCAB_SIZE, 16, 100, 60)
    engine = make_native(limits=EngineLimits(32, MAX_LEN, 36, PAGE_SIZE, VOCAB_SIZE, (EOS,)))
    alone = {request.number: Hand(engine).run([request])[request.number].content for request in requests}
    heard = Hand(engine, conservativeness=0.01).run(requests)
    engine.close()
    assert sum(one.num_retractions for one in heard.values()) > 3
    assert {number: one.content for number, one in heard.items()} == alone
