"""An engine whose weights change while requests wait: then the new model goes on, and a failure leaves the old one in place."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from tiny_models import VOCAB_SIZE, build, logits_of

from sapwood.config.raw import RawOptions
from sapwood.config.resolve import HostFacts, resolve
from sapwood.core.sampling import SamplingParams
from sapwood.distributed.group import SoloGroup
from sapwood.messages.types import Answer, Continue, Overhaul, Pause, Profile, Submit, pack_ids
from sapwood.worker.build import build_worker
from sapwood.worker.built import BuiltWorker
from sapwood.worker.core import WorkerCore

PROMPT = np.random.default_rng(1).integers(3, VOCAB_SIZE, 20).tolist()


def make_worker(folder: Path, **options: object) -> tuple[BuiltWorker, WorkerCore]:
    values = {"model_path": str(folder), "device": "cpu", "random_seed": 1, "max_running_requests": 4, **options}
    config = resolve(RawOptions(values, dict.fromkeys(values, "test")), HostFacts(2, False))
    built = build_worker(config.model, config.engine, config.scheduler, str(folder), SoloGroup())
    core = WorkerCore(built.scheduler, built.engine, True)
    core.appoint(built.steward)
    return built, core


def submit(number: int, ids: list[int], **params: object) -> Submit:
    return Submit(number, number, 0, pack_ids(ids), SamplingParams(temperature=0.0, seed=1, **params))  # type: ignore[arg-type]


class Turns:
    """Drives a worker and gathers what it says."""

    def __init__(self, core: WorkerCore) -> None:
        self.core, self.ids, self.answers = core, list[int](), dict[int, Answer]()

    def go(self, *messages: object, until: object = None) -> None:
        for turn in range(200):
            news = self.core.step(list(messages) if turn == 0 else [])  # type: ignore[arg-type]
            self.ids += [token_id for event in news.events for token_id in event.token_ids]
            self.answers |= {answer.ask: answer for answer in news.answers}
            if until is not None and callable(until) and until():
                return
        raise AssertionError("it did not come about")

    def ask(self, message: Pause | Continue | Overhaul | Profile) -> Answer:
        self.go(message, until=lambda: message.ask in self.answers)
        return self.answers[message.ask]


def greedy_by(model: object, ids: list[int], new: list[int]) -> bool:
    """Whether every id of `new` is (nearly) what the model likes best after those before it."""
    logits = logits_of(model, ids + new)[len(ids) - 1 : -1]  # type: ignore[arg-type]
    chosen = logits.gather(1, torch.tensor(new)[:, None])[:, 0]
    return bool((logits.max(dim=1).values - chosen).max() < 1e-3)


def other_weights(source: Path, target: Path) -> object:
    """The same configuration with other numbers."""
    model = build("llama", target)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(-0.7)
    model.save_pretrained(target)
    return model


@pytest.mark.parametrize("kernels", ["reference", "auto"])
def test_a_request_goes_on_with_the_new_weights(kernels: str, tmp_path: Path) -> None:
    first = build("llama", tmp_path / "a")
    second = other_weights(tmp_path / "a", tmp_path / "b")
    _, core = make_worker(tmp_path / "a", kernel_backend=kernels)
    turns = Turns(core)
    turns.go(submit(1, PROMPT, max_new_tokens=24, ignore_eos=True), until=lambda: len(turns.ids) >= 8)
    assert turns.ask(Pause(2, True)).ok
    num_before = len(turns.ids)
    assert turns.ask(Overhaul(3, "load", str(tmp_path / "b"))).ok
    assert turns.ask(Continue(4)).ok
    turns.go(until=lambda: len(turns.ids) == 24)
    if kernels == "reference":  # native kernels round, so that near ties may differ
        assert greedy_by(first, PROMPT, turns.ids[:num_before])
        assert greedy_by(second, PROMPT + turns.ids[:num_before], turns.ids[num_before:])
    assert not greedy_by(first, PROMPT + turns.ids[:num_before], turns.ids[num_before:])
    assert core.scheduler.check() == []
    core.close()


def test_weights_that_do_not_fit_are_refused_and_the_old_ones_stay(tmp_path: Path) -> None:
    first = build("llama", tmp_path / "a")
    build("llama", tmp_path / "other")
    config = json.loads((tmp_path / "other" / "config.json").read_text())
    (tmp_path / "other" / "config.json").write_text(json.dumps({**config, "rope_theta": 77.0, "rope_parameters": None}))
    build("qwen3", tmp_path / "qwen")
    _, core = make_worker(tmp_path / "a", kernel_backend="reference")
    turns = Turns(core)
    assert turns.ask(Pause(1, True)).ok
    for number, (name, words) in enumerate(
        (("other", "another model"), ("qwen", "another model"), ("none", "does not exist")), 2
    ):
        answer = turns.ask(Overhaul(number, "load", str(tmp_path / name)))
        assert not answer.ok and words in answer.message
    assert turns.ask(Continue(9)).ok
    turns.go(submit(1, PROMPT, max_new_tokens=6, ignore_eos=True), until=lambda: len(turns.ids) == 6)
    assert greedy_by(first, PROMPT, turns.ids)
    core.close()


def test_memory_is_released_and_comes_back(tmp_path: Path) -> None:
    model = build("llama", tmp_path)
    _, core = make_worker(tmp_path, kernel_backend="reference")
    turns = Turns(core)
    turns.go(submit(1, PROMPT, max_new_tokens=12, ignore_eos=True), until=lambda: len(turns.ids) >= 4)
    assert turns.ask(Pause(2, True)).ok and turns.ask(Overhaul(3, "release")).ok
    assert not turns.ask(Continue(4)).ok
    assert turns.ask(Overhaul(5, "restore")).ok and turns.ask(Continue(6)).ok
    turns.go(until=lambda: len(turns.ids) == 12)
    assert greedy_by(model, PROMPT, turns.ids)
    core.close()


def test_recorded_steps_are_a_trace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SAPWOOD_CACHE", str(tmp_path / "cache"))
    build("llama", tmp_path / "a")
    _, core = make_worker(tmp_path / "a", kernel_backend="reference")
    turns = Turns(core)
    assert not turns.ask(Profile(1, False)).ok
    assert turns.ask(Profile(2, True, 5)).ok and not turns.ask(Profile(3, True)).ok
    turns.go(submit(1, PROMPT, max_new_tokens=9, ignore_eos=True), until=lambda: len(turns.ids) == 9)
    path = Path(turns.ask(Profile(4, False)).message)
    assert path.is_relative_to(tmp_path / "cache" / "profiles")
    events = json.loads(path.read_text())["traceEvents"]
    steps = [event for event in events if event["name"].startswith("step")]
    assert len(steps) == 5 and steps[0]["args"]["tokens"] == len(PROMPT) and steps[1]["args"]["decodes"] == 1
    assert all(event["dur"] > 0 and event["ph"] == "X" for event in events)
    core.close()
