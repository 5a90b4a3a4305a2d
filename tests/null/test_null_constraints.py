"""Constrained completions on the null model: valid, the same however they are scheduled, and nobody's affair but their own."""

from __future__ import annotations

import json
import random
import re
from itertools import product
from typing import Any

import jsonschema
import numpy as np
import pytest
from constrained import News, Worker, byte_backend, regex
from null_driver import submit

from sapwood.core.constraint import Constraint, ForgetGrammar, GrammarDone
from sapwood.core.plan import EngineLimits
from sapwood.core.sampling import LogprobOptions
from sapwood.engine.null_model import EOS_ID, VOCAB_SIZE
from sapwood.messages.types import Abort, StepInputs, Submit
from sapwood.scheduler import Scheduler, SchedulerOptions
from sapwood.scheduler.step_log import FileStepLog, replay

PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 9},
        "kind": {"enum": ["administrator", "adversary", "guest"]},
        "tags": {"type": "array", "items": {"type": "integer", "minimum": 0, "maximum": 99}, "maxItems": 3},
        "is_well": {"type": "boolean"},
    },
    "required": ["name", "kind", "tags", "is_well"],
    "additionalProperties": False,
}
THOUGHT_ENDS = tuple(b"xq")
CONSTRAINTS: list[Constraint | None] = [
    None,
    Constraint("json_schema", json.dumps(PERSON)),
    regex("(abc){2,5}"),
    regex("[a-z]{3,40}"),
    Constraint("choice", json.dumps(["a rather long answer", "a rather short one", "no"])),
    regex("(answer: )[0-9]{4}", starts_after=THOUGHT_ENDS),
    Constraint("ebnf", 'root ::= "(" root ")" | "leaf"'),
]


def requests() -> list[Submit]:
    """Every kind, greedy and sampled, alone and in groups, with all that ends a completion, over shared beginnings."""
    chance = random.Random(11)
    system = [chance.randrange(97, 123) for _ in range(60)]
    batch: list[Submit] = []
    for turn in range(28):
        prompt = system[: chance.choice([0, 30, 60])] + [chance.randrange(97, 123) for _ in range(chance.randrange(1, 30))]
        for sample in range(3 if turn % 5 == 0 else 1):
            facts: dict[str, Any] = {
                "max_new_tokens": chance.randrange(30, 150),
                "temperature": turn % 2 * 0.9,
                "seed": turn,
                "constraint": CONSTRAINTS[turn % len(CONSTRAINTS)],
                "min_new_tokens": 12 if turn % 3 == 0 else 0,
                "ignore_eos": turn % 4 == 0,
            }
            report = LogprobOptions(output=turn % 6 == 1)
            batch.append(submit(len(batch) + 1, prompt, group=turn, sample_index=sample, logprobs=report, **facts))
    return batch


def comparable(news: News) -> object:
    return news.ids, news.finishes, news.num_logprobs


@pytest.fixture(scope="module")
def alone() -> dict[int, object]:
    """Each request on a worker of its own that takes one step at a time and never jumps."""
    limits = EngineLimits(1, 256, 256, 1, VOCAB_SIZE, (EOS_ID,))
    worker = Worker(limits, SchedulerOptions(cache="chunk"), overlap=False, jumps=False)
    return {request.number: comparable(worker.run(request).heard[request.number]) for request in requests()}


@pytest.mark.parametrize(("overlap", "jumps", "page_size"), list(product([False, True], [False, True], [1, 16])))
def test_the_same_tokens_however_scheduled(alone: dict[int, object], overlap: bool, jumps: bool, page_size: int) -> None:
    retractions = 0
    for chunk, cache, mode in ((16, "radix", "mixed"), (64, "hash", "prefill-first"), (None, "chunk", "mixed")):
        limits = EngineLimits(6, 256, 304 // page_size, page_size, VOCAB_SIZE, (EOS_ID,))
        options = SchedulerOptions(step_token_budget=chunk, cache=cache, mode=mode, max_reserved_tokens=1)
        worker = Worker(limits, options, overlap=overlap, jumps=jumps, num_kept=0).run(*requests())
        assert {number: comparable(news) for number, news in worker.heard.items()} == alone
        retractions += worker.scheduler.stats().retractions_total
    assert retractions > 0


def test_what_is_constrained_is_valid_and_what_is_free_is_as_it_was() -> None:
    worker = Worker().run(*requests())
    num_complete = 0
    for request in requests():
        news, params = worker.heard[request.number], request.params
        [finish] = news.finishes
        assert finish.kind in ("stop", "length")
        if params.constraint is None:
            prompt = np.frombuffer(request.token_ids, dtype="<i4").tolist()
            assert news.ids == worker.null.model.complete(prompt, params, request.sample_index)
        elif finish.kind == "stop":
            num_complete += 1
            check_valid(params.constraint, news.text)
            if params.constraint.text == "[a-z]{3,40}":  # the one that is not over before
                assert len([token for token in news.ids if token < 256]) >= params.min_new_tokens
    assert num_complete > 15


def check_valid(constraint: Constraint, text: str) -> None:
    if constraint.starts_after:
        text = text.split(bytes(constraint.starts_after).decode(), 1)[1]
    match constraint.kind:
        case "json_schema":
            jsonschema.validate(json.loads(text), json.loads(constraint.text))
        case "regex":
            assert re.fullmatch(constraint.text, text)
        case "choice":
            assert text in json.loads(constraint.text)
        case _:
            assert re.fullmatch(r"\(*leaf\)*", text) and text.count("(") == text.count(")")


@pytest.mark.parametrize("overlap", [False, True])
def test_a_jump_saves_steps(overlap: bool) -> None:
    constraint = Constraint("choice", json.dumps(["a" * 100 + "b", "c" * 100 + "d"]))
    steps = {}
    for jumps in (False, True):
        worker = Worker(overlap=overlap, jumps=jumps).run(submit(1, [97] * 20, max_new_tokens=200, constraint=constraint))
        assert worker.heard[1].text in ("a" * 100 + "b", "c" * 100 + "d")
        steps[jumps] = worker.scheduler.stats().steps_total
    assert steps[True] < 10 < 90 < steps[False]


@pytest.mark.parametrize("jumps", [False, True])
def test_a_replay_goes_on_where_it_was(jumps: bool) -> None:
    for constraint in CONSTRAINTS[1:]:
        whole = Worker(jumps=jumps).run(submit(1, [98] * 10, temperature=0.8, constraint=constraint)).heard[1]
        for num_emitted in range(0, len(whole.ids), 3):
            known = [98] * 10 + whole.ids[:num_emitted]
            again = submit(1, known, temperature=0.8, constraint=constraint, num_emitted=num_emitted)
            rest = Worker(jumps=jumps).run(again).heard[1]
            assert (whole.ids[:num_emitted] + rest.ids, rest.finishes) == (whole.ids, whole.finishes)


@pytest.mark.parametrize("overlap", [False, True])
def test_who_ends_early_leaves_nobody_waiting(alone: dict[int, object], overlap: bool) -> None:
    chance = random.Random(5)
    worker = Worker(overlap=overlap)
    worker.turn(*requests())
    aborted = set()
    while worker.core.has_work:
        open_numbers = [n for n in range(1, len(requests()) + 1) if n not in worker.heard or not worker.heard[n].finishes]
        number = chance.choice(open_numbers) if open_numbers and chance.random() < 0.1 else None
        if number is not None:
            aborted.add(number)
        worker.turn(*([Abort([number])] if number else []))
    assert aborted and all(worker.heard[number].finishes for number in aborted)
    kept = {number: comparable(news) for number, news in worker.heard.items() if news.finishes[0].kind != "abort"}
    assert kept and kept == {number: alone[number] for number in kept}
    assert worker.library.collect() == [] and not worker.library.is_busy


def test_every_rank_and_every_replay_makes_the_same_plans(tmp_path: Any) -> None:
    limits, options = EngineLimits(6, 256, 20, 16, VOCAB_SIZE, (EOS_ID,)), SchedulerOptions(max_reserved_tokens=1)
    path = str(tmp_path / "steps.log")
    worker = Worker(limits, options, log=FileStepLog(path, limits, options))
    worker.run(*requests())
    worker.core.close()
    found = replay(path)
    assert found.first_difference is None and found.num_steps > 50 and not found.is_torn
    twin = Scheduler(limits, options)
    plans = [plan for inputs in worker.inputs if (plan := twin.step(inputs).plan) is not None]
    assert any(plan.tokens for plan in plans) and any(plan.constrained for plan in plans)


def test_a_grammar_that_does_not_compile_fails_its_request_alone() -> None:
    bad = Constraint("json_schema", '{"type": "nonsense"}')
    worker = Worker().run(
        submit(1, [97], constraint=bad), submit(2, [97], constraint=CONSTRAINTS[2]), submit(3, [97], max_new_tokens=5)
    )
    [finish] = worker.heard[1].finishes
    assert (finish.kind, finish.status) == ("error", 400) and "nonsense" in finish.message
    assert worker.heard[2].finishes[0].kind == "stop" and worker.heard[3].finishes


def test_a_request_is_not_admitted_before_its_grammar_is_ready_and_holds_nobody_back() -> None:
    scheduler = Scheduler(EngineLimits(4, 256, 64, 16, VOCAB_SIZE, (EOS_ID,)), SchedulerOptions())
    waiting = submit(1, [97], constraint=regex("a+"))
    outcome = scheduler.step(StepInputs(messages=[waiting, submit(2, [98])]))
    assert [order.number for order in outcome.grammars] == [1]
    assert outcome.plan is not None and [start.token_ids.tolist() for start in outcome.plan.starts] == [[98]]
    outcome = scheduler.step(StepInputs(grammars=[GrammarDone(1)]))
    assert outcome.plan is not None and [start.token_ids.tolist() for start in outcome.plan.starts] == [[97]]
    outcome = scheduler.step(StepInputs(messages=[Abort([1])]))
    assert [type(order) for order in outcome.grammars] == [ForgetGrammar]


def test_a_library_keeps_what_is_used_and_little_else() -> None:
    worker = Worker(num_kept=2)
    for number in range(6):
        worker.run(submit(number + 1, [97], constraint=regex(f"a{{{number + 1}}}")))
    worker.turn()
    assert worker.library.num_held == 2
    many = [submit(number, [97], constraint=regex(f"b{{{number}}}")) for number in range(10, 20)]
    worker.run(*many)
    assert all(worker.heard[number].text == "b" * number for number in range(10, 20))


def test_masks_that_nobody_released_do_not_hold_up_the_end() -> None:
    worker = Worker(overlap=True)
    worker.turn(submit(1, [97] * 30, max_new_tokens=100, constraint=CONSTRAINTS[3]))
    for _ in range(50):
        worker.turn()
        if worker.heard.get(1) and len(worker.heard[1].ids) > 3:
            break
    worker.core.close()
    assert not worker.heard[1].finishes


def test_a_thought_may_be_anything_but_cannot_end() -> None:
    constraint = regex("[0-9]{3}", starts_after=THOUGHT_ENDS)
    for seed in range(8):
        worker = Worker().run(submit(1, [97, seed], max_new_tokens=400, temperature=1.0, seed=seed, constraint=constraint))
        news = worker.heard[1]
        thought, mark, answer = news.text.partition("xq")
        if news.finishes[0].kind == "stop":
            assert mark and re.fullmatch("[0-9]{3}", answer)
        else:
            assert len(news.ids) == 400 and (not mark or re.fullmatch("[0-9]{0,3}", answer))


def test_the_backend_fills_many_rows_as_it_fills_one() -> None:
    backend = byte_backend()
    matchers = [backend.compile(c).start() for c in CONSTRAINTS[1:] if c is not None]
    together = np.zeros((len(matchers), 9), dtype=np.uint32)
    backend.fill([(matcher, index) for index, matcher in enumerate(matchers)], together)
    for index, matcher in enumerate(matchers):
        single = np.zeros((1, 9), dtype=np.uint32)
        backend.fill([(matcher, 0)], single)
        assert (single[0] == together[index]).all() and single.any()
