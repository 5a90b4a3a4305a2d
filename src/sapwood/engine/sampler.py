"""Sampling for a whole batch at once: the parameters of every slot, and the log-probabilities that requests asked for.

Does not know the scheduler, pages or text; ids come and go by (slot, position) of the token table. Invariant: the id at a
position depends only on the row's logits, its request's parameters and the completion before it, never on the batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sapwood.core.plan import SlotStart
from sapwood.core.sampling import SamplingParams, TokenLogprobs
from sapwood.kernels.reference import sampling as ops

_FLOAT32_LIMIT = float(np.finfo(np.float32).max) / 4  # a bias beyond it would overflow when added to a logit

_FIELDS = np.dtype(
    [
        ("temperature", np.float32),
        ("top_k", np.int64),
        ("top_p", np.float64),
        ("min_p", np.float32),
        ("frequency", np.float32),
        ("presence", np.float32),
        ("repetition", np.float32),
        ("seed", np.uint64),
        ("sample_index", np.int64),
        ("num_prompt", np.int64),
        ("min_new", np.int64),
        ("penalised", np.bool_),
        ("biased", np.bool_),
        ("reports", np.bool_),
    ]
)


@dataclass(frozen=True, slots=True)
class _Lists:
    """The parts of a slot's parameters that have no fixed length."""

    bias_ids: NDArray[np.int64]
    biases: NDArray[np.float32]
    ending_ids: NDArray[np.int64]
    top_n: int
    asked_ids: tuple[int, ...]


_NO_LISTS = _Lists(np.empty(0, np.int64), np.empty(0, np.float32), np.empty(0, np.int64), 0, ())


@dataclass(frozen=True, slots=True)
class LogprobRows:
    """Log-probabilities of some rows on their way to the host; read them once the step has finished.

    `values` float32 [R, 1 + N + A]: of the chosen id, the N best ids (`top_ids` [R, N]) and the asked ids, where row i uses
    the first `top_n[i]` and `num_asked[i]`.
    """

    chosen: Tensor
    top_ids: Tensor
    values: Tensor
    top_n: tuple[int, ...]
    num_asked: tuple[int, ...]

    def to_list(self) -> list[TokenLogprobs]:
        """One entry per row."""
        first_asked = 1 + self.top_ids.shape[1]
        rows = zip(self.chosen.tolist(), self.top_ids.tolist(), self.values.tolist(), self.top_n, self.num_asked, strict=True)
        return [
            TokenLogprobs(chosen, values[0], ids[:n], values[1 : 1 + n], values[first_asked : first_asked + asked])
            for chosen, ids, values, n, asked in rows
        ]


@dataclass(frozen=True, slots=True)
class Sampled:
    """What one step chose. `token_ids` int64 [S] lives on the device; `host_ids` is its copy on the way to the host.

    Read `host_ids` and `logprobs()` only after the step has finished on the device.
    """

    token_ids: Tensor
    host_ids: Tensor
    reported: tuple[int, ...] = ()
    rows: LogprobRows | None = None

    def logprobs(self) -> dict[int, TokenLogprobs]:
        """Log-probabilities by index into the batch, for the rows whose requests asked for them."""
        return {} if self.rows is None else dict(zip(self.reported, self.rows.to_list(), strict=True))


class Sampler:
    """Chooses the next id of every row. Used from the compute stream only, in the order of the plans."""

    def __init__(self, num_slots: int, vocab_size: int, eos_token_ids: Sequence[int], device: torch.device | str) -> None:
        self._vocab_size = vocab_size
        self._eos_ids = tuple(eos_token_ids)
        self._device = torch.device(device)
        self._slots = np.zeros(num_slots, dtype=_FIELDS)
        self._lists = [_NO_LISTS] * num_slots

    def start(self, start: SlotStart) -> None:
        """A request takes a slot. A seed that nobody drew counts as 0."""
        params, wanted = start.params, start.logprobs
        row = self._slots[start.slot]
        row["temperature"] = 0.0 if params.is_greedy else params.temperature
        row["top_k"] = min(params.top_k, self._vocab_size) if params.top_k > 0 else self._vocab_size
        row["top_p"], row["min_p"] = params.top_p, params.min_p
        row["frequency"], row["presence"] = params.frequency_penalty, params.presence_penalty
        row["repetition"], row["penalised"] = params.repetition_penalty, params.has_penalties
        row["seed"], row["sample_index"] = (params.seed or 0) % 2**64, start.sample_index
        row["num_prompt"], row["min_new"] = start.num_prompt, params.min_new_tokens
        row["biased"], row["reports"] = bool(params.logit_bias), wanted.output
        self._lists[start.slot] = _Lists(
            bias_ids=np.array(list(params.logit_bias), dtype=np.int64),
            biases=np.clip(list(params.logit_bias.values()), -_FLOAT32_LIMIT, _FLOAT32_LIMIT).astype(np.float32),
            ending_ids=self._ending_ids(params),
            top_n=min(wanted.top_n, self._vocab_size),
            asked_ids=wanted.token_ids,
        )

    def _ending_ids(self, params: SamplingParams) -> NDArray[np.int64]:
        """The ids that end the request, which must not come before `min_new_tokens`; with ignore_eos, eos is ordinary."""
        ids = {*params.stop_token_ids, *(() if params.ignore_eos else self._eos_ids)}
        return np.array(sorted(ids), dtype=np.int64)

    def sample(
        self,
        logits: Tensor,
        slots: Sequence[int],
        positions: Sequence[int],
        token_table: Tensor,
        allowed: Tensor | None = None,
    ) -> Sampled:
        """Choose the id of position `positions[i]` of the request in `slots[i]` from `logits[i]`.

        `logits` is [S, vocab_size] and is not changed; `token_table` int [num_slots, max_len] holds the ids before that position;
        `allowed` bool [S, vocab_size] (a grammar's mask) forbids ids where it is false.
        """
        slot_index = np.asarray(slots, dtype=np.int64)
        position = np.asarray(positions, dtype=np.int64)
        rows = self._slots[slot_index]
        logits = logits.float()
        steered = self._steer(logits, rows, slot_index, position, token_table)
        if allowed is not None:
            steered = steered.masked_fill(~allowed, -torch.inf)
        settings = ops.RowSettings(
            temperature=rows["temperature"].copy(),
            top_k=rows["top_k"].copy(),
            top_p=rows["top_p"].copy(),
            min_p=rows["min_p"].copy(),
            uniform=ops.uniforms(rows["seed"], rows["sample_index"], position),
        )
        chosen = ops.choose(steered, settings)
        host_ids = chosen.to("cpu", non_blocking=True)
        reported = np.flatnonzero(rows["reports"])
        if not len(reported):
            return Sampled(chosen, host_ids)
        index = self._to_device(reported)
        report = self._report(logits.index_select(0, index), slot_index[reported], chosen.index_select(0, index))
        return Sampled(chosen, host_ids, tuple(reported.tolist()), report)

    def prompt_logprobs(self, logits: Tensor, slot: int, target_ids: Sequence[int]) -> list[TokenLogprobs]:
        """Log-probabilities of known ids: `logits[i]` [P, vocab_size] predicts `target_ids[i]`. Waits for the device."""
        return self.score(logits, slot, target_ids).to_list()

    def score(self, logits: Tensor, slot: int, target_ids: Sequence[int]) -> LogprobRows:
        """`prompt_logprobs` without waiting: read the rows when the step has finished."""
        targets = self._to_device(np.asarray(target_ids, dtype=np.int64))
        return self._report(logits.float(), np.full(len(target_ids), slot), targets)

    # ------------------------------------------------------------------------------------------------ parts of a step
    def _steer(
        self, logits: Tensor, rows: NDArray[Any], slots: NDArray[np.int64], position: NDArray[np.int64], token_table: Tensor
    ) -> Tensor:
        """Penalties, bias and min_new_tokens on a copy; the logits themselves when no row asks for any of them."""
        num_completed = position - rows["num_prompt"]
        penalised = rows["penalised"] & (num_completed > 0)
        biased = rows["biased"]
        too_early = num_completed < rows["min_new"]
        if not (penalised.any() or biased.any() or too_early.any()):
            return logits
        steered = logits.clone(memory_format=torch.contiguous_format)
        if penalised.any():
            self._penalise_(steered, np.flatnonzero(penalised), rows, slots, position, token_table)
        if biased.any():
            lists = [(row, self._lists[slots[row]]) for row in np.flatnonzero(biased)]
            index, ids = self._ragged([(row, entry.bias_ids) for row, entry in lists])
            ops.add_bias_(steered, index, ids, self._to_device(np.concatenate([entry.biases for _, entry in lists])))
        if too_early.any():
            index, ids = self._ragged([(row, self._lists[slots[row]].ending_ids) for row in np.flatnonzero(too_early)])
            ops.forbid_(steered, index, ids)
        return steered

    def _penalise_(
        self,
        logits: Tensor,
        which: NDArray[np.int64],
        rows: NDArray[Any],
        slots: NDArray[np.int64],
        position: NDArray[np.int64],
        token_table: Tensor,
    ) -> None:
        """Penalise the rows `which` for their ids at positions [num_prompt, position), read from the token table."""
        first, last = rows["num_prompt"][which], position[which]
        low, high = int(first.min()), int(last.max())
        columns = torch.arange(low, high, device=self._device)
        counted = (columns >= self._to_device(first)[:, None]) & (columns < self._to_device(last)[:, None])
        ids = token_table[:, low:high].index_select(0, self._to_device(slots[which])).long()
        settings = (self._to_device(rows[name][which]) for name in ("frequency", "presence", "repetition"))
        if len(which) == len(rows):
            ops.penalise_(logits, ids, counted, *settings)
            return
        index = self._to_device(which)
        part = logits.index_select(0, index)
        ops.penalise_(part, ids, counted, *settings)
        logits.index_copy_(0, index, part)

    def _report(self, logits: Tensor, slots: NDArray[np.int64], chosen: Tensor) -> LogprobRows:
        """Log-probabilities of unmodified logits [R, V] for the ids `chosen` and whatever else the slots' requests want."""
        lists = [self._lists[slot] for slot in slots]
        top_n, num_asked = tuple(e.top_n for e in lists), tuple(len(e.asked_ids) for e in lists)
        logprobs = ops.log_probabilities(logits)
        _, top_ids = ops.best(logits, max(top_n, default=0))
        asked = np.zeros((len(lists), max(num_asked, default=0)), dtype=np.int64)
        for row, entry in enumerate(lists):
            asked[row, : len(entry.asked_ids)] = entry.asked_ids
        values = logprobs.gather(1, torch.cat((chosen[:, None], top_ids, self._to_device(asked)), dim=1))
        host = [part.to("cpu", non_blocking=True) for part in (chosen, top_ids, values)]
        return LogprobRows(host[0], host[1], host[2], top_n, num_asked)

    def _ragged(self, lists: list[tuple[Any, NDArray[np.int64]]]) -> tuple[Tensor, Tensor]:
        """Lists of ids by row as two flat int64 tensors: row numbers and ids."""
        rows = np.repeat([row for row, _ in lists], [len(ids) for _, ids in lists])
        return self._to_device(rows), self._to_device(np.concatenate([ids for _, ids in lists]))

    def _to_device(self, array: NDArray[Any]) -> Tensor:
        return torch.from_numpy(array).to(self._device, non_blocking=True)
