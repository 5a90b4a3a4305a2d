"""The sampler: penalties, bias, minimum length, seeds and log-probabilities, by slots and positions."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from sapwood.core.plan import SlotStart, as_ids
from sapwood.core.sampling import LogprobOptions, SamplingParams, TokenLogprobs
from sapwood.engine.sampler import Sampler

VOCAB, SLOTS, MAX_LEN, EOS = 50, 6, 64, (7, 9)
NO_LOGPROBS = LogprobOptions()


def new_sampler() -> Sampler:
    return Sampler(SLOTS, VOCAB, EOS, "cpu")


def new_table() -> torch.Tensor:
    """A token table full of nonsense, as it is between requests."""
    return torch.full((SLOTS, MAX_LEN), -1, dtype=torch.int32)


def begin(
    sampler: Sampler,
    table: torch.Tensor,
    slot: int,
    ids: list[int],
    num_prompt: int,
    params: SamplingParams,
    logprobs: LogprobOptions = NO_LOGPROBS,
    sample_index: int = 0,
) -> int:
    """Start a request as the runner does; returns the position that is sampled next."""
    sampler.start(SlotStart(slot, as_ids(ids), num_prompt, params, logprobs, sample_index))
    table[slot, : len(ids)] = torch.tensor(ids, dtype=torch.int32)
    return len(ids)


def greedy(**options: object) -> SamplingParams:
    return SamplingParams(temperature=0.0, **options)


def random_logits(count: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(count, VOCAB, generator=torch.Generator().manual_seed(seed)) * 2


params_strategy = st.builds(
    SamplingParams,
    temperature=st.sampled_from([0.0, 0.8, 1.3]),
    top_k=st.sampled_from([-1, 1, 5, 1000]),
    top_p=st.sampled_from([1.0, 0.7]),
    min_p=st.sampled_from([0.0, 0.1]),
    frequency_penalty=st.sampled_from([0.0, 0.7, -0.3]),
    presence_penalty=st.sampled_from([0.0, 0.4]),
    repetition_penalty=st.sampled_from([1.0, 1.4, 0.8]),
    logit_bias=st.dictionaries(st.integers(0, VOCAB - 1), st.floats(-4, 4, width=32), max_size=3),
    min_new_tokens=st.sampled_from([0, 3]),
    stop_token_ids=st.sampled_from([(), (1, 2)]),
    ignore_eos=st.booleans(),
    seed=st.integers(-(2**63), 2**63 - 1),
)
request_strategy = st.tuples(params_strategy, st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=12), st.integers(1, 12))


def steered_by_hand(logits: np.ndarray, params: SamplingParams, completion: list[int]) -> np.ndarray:
    """The documented order, one id at a time, in float32."""
    x = logits.astype(np.float32).copy()
    for token_id in set(completion):
        value = np.float32(x[token_id] - np.float32(params.frequency_penalty) * np.float32(completion.count(token_id)))
        value = np.float32(value - np.float32(params.presence_penalty))
        repetition = np.float32(params.repetition_penalty)
        x[token_id] = value / repetition if value > 0 else value * repetition
    for token_id, bias in params.logit_bias.items():
        x[token_id] += np.float32(bias)
    if len(completion) < params.min_new_tokens:
        for token_id in (*params.stop_token_ids, *(() if params.ignore_eos else EOS)):
            x[token_id] = -np.inf
    return x


@settings(max_examples=120, deadline=None)
@given(st.lists(request_strategy, min_size=1, max_size=SLOTS), st.integers(0, 10**6))
def test_steering_equals_the_documented_order_and_leaves_the_logits_alone(requests: list, seed: int) -> None:
    sampler, table, logits = new_sampler(), new_table(), random_logits(len(requests), seed)
    before = logits.clone()
    positions = [begin(sampler, table, slot, ids, min(border, len(ids)), p) for slot, (p, ids, border) in enumerate(requests)]
    slots = np.arange(len(requests))
    steered = sampler._steer(logits, sampler._slots[slots], slots, np.array(positions), table)
    assert torch.equal(logits, before)
    for row, (params, ids, border) in enumerate(requests):
        expected = steered_by_hand(before[row].numpy(), params, ids[border:])
        np.testing.assert_array_equal(steered[row].numpy(), expected)


@settings(max_examples=80, deadline=None)
@given(st.lists(request_strategy, min_size=2, max_size=SLOTS), st.integers(0, 10**6))
def test_a_request_alone_is_the_request_in_a_batch(requests: list, seed: int) -> None:
    wanted = LogprobOptions(output=True, top_n=3, token_ids=(4,))
    sampler, table, logits = new_sampler(), new_table(), random_logits(len(requests), seed)
    positions = [
        begin(sampler, table, slot, ids, min(border, len(ids)), p, wanted) for slot, (p, ids, border) in enumerate(requests)
    ]
    together = sampler.sample(logits, range(len(requests)), positions, table)
    order = np.random.default_rng(seed).permutation(len(requests)).tolist()
    permuted = sampler.sample(logits[order], order, [positions[i] for i in order], table)
    for place, row in enumerate(order):
        alone = sampler.sample(logits[row : row + 1].clone(), [row], [positions[row]], table)
        assert alone.token_ids.tolist() == [together.token_ids[row]] == [permuted.token_ids[place]]
        assert alone.logprobs()[0] == together.logprobs()[row] == permuted.logprobs()[place]


def test_seed_sample_and_position_decide_and_the_slot_does_not() -> None:
    flat = torch.zeros(1, VOCAB)

    def draw(slot: int, seed: int, sample_index: int, position: int) -> int:
        sampler, table = new_sampler(), new_table()
        begin(sampler, table, slot, [1, 2], 2, SamplingParams(seed=seed), sample_index=sample_index)
        return int(sampler.sample(flat, [slot], [position], table).token_ids)

    base = [draw(0, 11, 0, position) for position in range(2, 40)]
    assert base == [draw(3, 11, 0, position) for position in range(2, 40)]
    assert base != [draw(0, 12, 0, position) for position in range(2, 40)]
    assert base != [draw(0, 11, 1, position) for position in range(2, 40)]
    assert len(set(base)) > 10


def test_a_slot_forgets_its_former_request() -> None:
    sampler, table = new_sampler(), new_table()
    heavy = greedy(logit_bias={3: 100.0}, frequency_penalty=2.0, min_new_tokens=40, stop_token_ids=(5,))
    begin(sampler, table, 0, [1, 2, 3], 1, heavy, LogprobOptions(output=True, top_n=2))
    position = begin(sampler, table, 0, [1], 1, greedy())
    logits = torch.zeros(1, VOCAB)
    logits[0, 5] = 1.0
    sampled = sampler.sample(logits, [0], [position], table)
    assert sampled.token_ids.tolist() == [5] and sampled.logprobs() == {}


def test_minimum_length_holds_back_every_ending_until_it_is_reached() -> None:
    sampler, table = new_sampler(), new_table()
    logits = torch.zeros(1, VOCAB)
    logits[0, [7, 9, 20, 30]] = torch.tensor([5.0, 4.0, 3.0, 2.0])
    begin(sampler, table, 0, [1, 2], 2, greedy(min_new_tokens=2, stop_token_ids=(20,)))
    table[0, 2:4] = 0
    assert [int(sampler.sample(logits, [0], [p], table).token_ids) for p in (2, 3, 4)] == [30, 30, 7]
    begin(sampler, table, 1, [1, 2], 2, greedy(min_new_tokens=2, stop_token_ids=(20,), ignore_eos=True))
    assert int(sampler.sample(logits, [1], [2], table).token_ids) == 7


def test_a_mask_forbids_and_none_is_neutral() -> None:
    sampler, table, logits = new_sampler(), new_table(), random_logits(2)
    for slot, params in enumerate((greedy(), SamplingParams(seed=1))):
        begin(sampler, table, slot, [1], 1, params, LogprobOptions(output=True))
    allowed = torch.zeros(2, VOCAB, dtype=torch.bool)
    allowed[:, 13] = True
    masked = sampler.sample(logits, [0, 1], [1, 1], table, allowed)
    assert masked.token_ids.tolist() == [13, 13]
    assert masked.logprobs()[0].logprob == torch.log_softmax(logits[0], -1)[13].item()
    free = sampler.sample(logits, [0, 1], [1, 1], table)
    everything = sampler.sample(logits, [0, 1], [1, 1], table, torch.ones(2, VOCAB, dtype=torch.bool))
    assert torch.equal(free.token_ids, everything.token_ids)


def test_enormous_biases_stay_ordered() -> None:
    sampler, table = new_sampler(), new_table()
    begin(sampler, table, 0, [1], 1, SamplingParams(seed=3, logit_bias={4: 1e300, 5: -1e300}))
    assert sampler.sample(random_logits(1), [0], [1], table).token_ids.tolist() == [4]


def test_logprobs_are_those_of_the_unmodified_logits() -> None:
    sampler, table, logits = new_sampler(), new_table(), random_logits(3)
    logits[2, [8, 3, 30]] = 9.0  # a tie at the top
    begin(sampler, table, 0, [1, 1, 1], 1, greedy(logit_bias={2: 100.0}), LogprobOptions(output=True, top_n=4, token_ids=(2, 40)))
    begin(sampler, table, 1, [1], 1, greedy())
    begin(sampler, table, 2, [1], 1, greedy(), LogprobOptions(output=True, top_n=2))
    sampled = sampler.sample(logits, [0, 1, 2], [3, 1, 1], table)
    expected = torch.log_softmax(logits, dim=-1)
    found = sampled.logprobs()
    assert sorted(found) == [0, 2]
    assert found[0].token_id == 2 and found[0].logprob == expected[0, 2].item()
    values, ids = expected[0].sort(descending=True)
    assert found[0].top_ids == ids[:4].tolist() and found[0].top_logprobs == values[:4].tolist()
    assert found[0].asked_logprobs == expected[0, [2, 40]].tolist()
    assert found[2].top_ids == [3, 8] and found[2].asked_logprobs == []
    assert found[2].logprob == found[2].top_logprobs[0]  # the very same bits
    assert sampled.host_ids.tolist() == sampled.token_ids.tolist() == [2, int(logits[1].argmax()), 3]


def test_prompt_logprobs_match_the_output_ones() -> None:
    sampler, table, logits = new_sampler(), new_table(), random_logits(5)
    wanted = LogprobOptions(output=True, top_n=2, token_ids=(1, 0), prompt_start=0)
    begin(sampler, table, 4, [1], 1, greedy(), wanted)
    targets = logits.argmax(dim=-1).tolist()
    rows = sampler.prompt_logprobs(logits, 4, targets)
    assert len(rows) == 5 and all(isinstance(row, TokenLogprobs) for row in rows)
    for i in range(5):
        assert rows[i] == sampler.sample(logits[i : i + 1], [4], [1], table).logprobs()[0]


def test_no_rows_at_all_is_legal() -> None:
    sampled = new_sampler().sample(torch.empty(0, VOCAB), [], [], new_table())
    assert sampled.token_ids.tolist() == [] and sampled.logprobs() == {}


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_narrow_logits_are_widened(dtype: torch.dtype) -> None:
    sampler, table = new_sampler(), new_table()
    begin(sampler, table, 0, [1], 1, SamplingParams(seed=5, top_k=3))
    logits = random_logits(1).to(dtype)
    assert torch.equal(
        sampler.sample(logits, [0], [1], table).token_ids, sampler.sample(logits.float(), [0], [1], table).token_ids
    )
