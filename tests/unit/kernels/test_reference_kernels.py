"""The row-wise operations of the torch backend, each against its definition."""

from __future__ import annotations

import pytest
import torch

from sapwood.core.plan import RowRun
from sapwood.errors import ConfigError
from sapwood.kernels.api import KERNEL_BACKENDS, AttentionShape, AttentionWeights, KVLayer, Norm, Rope, StepGeometry
from sapwood.kernels.reference import ReferenceKernels

KERNELS = ReferenceKernels()


def test_the_backend_is_registered() -> None:
    assert KERNEL_BACKENDS.get(ReferenceKernels.name) is ReferenceKernels
    with pytest.raises(ConfigError, match="known: .*reference"):
        KERNEL_BACKENDS.get("abacus")


def test_parts_are_stacked_in_order_and_a_single_part_is_kept() -> None:
    parts, bias = [torch.randn(2, 4), torch.randn(3, 4)], torch.randn(5)
    linear = KERNELS.prepare_linear(parts, bias)
    x = torch.randn(7, 4)
    assert (linear.in_features, linear.out_features) == (4, 5)
    torch.testing.assert_close(KERNELS.project(x, linear), x @ torch.cat(parts).T + bias)
    assert KERNELS.prepare_linear(parts[:1], None).data.weight is parts[0]


def test_low_precision_weights_give_float32_activations() -> None:
    linear = KERNELS.prepare_linear([torch.randn(3, 4).bfloat16()], torch.randn(3))
    assert linear.data.bias.dtype == torch.bfloat16
    assert KERNELS.project(torch.randn(2, 4), linear).dtype == torch.float32


def test_ids_outside_the_table_embed_as_zero() -> None:
    table = KERNELS.prepare_linear([torch.arange(8.0).view(4, 2)], None)
    ids = torch.tensor([9, 10, 13, 14], dtype=torch.int32)
    embedded = KERNELS.embed(ids, table, first_id=10, scale=2.0)
    assert embedded.tolist() == [[0.0, 0.0], [0.0, 2.0], [12.0, 14.0], [0.0, 0.0]]


def test_add_is_in_place_and_norms_only_the_delta() -> None:
    norm = Norm(torch.tensor([1.0, 3.0]), eps=0.0)
    hidden, delta = torch.tensor([[1.0, 1.0]]), torch.tensor([[3.0, 4.0]])
    KERNELS.add(hidden, delta, None)
    assert hidden.tolist() == [[4.0, 5.0]]
    KERNELS.add(hidden, delta, norm)
    root = 12.5**0.5
    torch.testing.assert_close(hidden, torch.tensor([[4.0 + 3.0 / root, 5.0 + 12.0 / root]]))


@pytest.mark.parametrize("activation", ["silu", "gelu_tanh"])
def test_mlp_gates_the_second_half(activation: str) -> None:
    norm = Norm(torch.rand(4), eps=1e-6)
    gate, up, down = torch.randn(6, 4), torch.randn(6, 4), torch.randn(4, 6)
    x = torch.randn(3, 4)
    normed = x * (x.pow(2).mean(1, keepdim=True) + 1e-6).rsqrt() * norm.weight
    act = torch.nn.SiLU() if activation == "silu" else torch.nn.GELU("tanh")
    expected = (act(normed @ gate.T) * (normed @ up.T)) @ down.T
    found = KERNELS.mlp(x, norm, KERNELS.prepare_linear([gate, up], None), KERNELS.prepare_linear([down], None), activation)
    torch.testing.assert_close(found, expected)


def test_unknown_activation_is_refused() -> None:
    linear = KERNELS.prepare_linear([torch.randn(4, 4)], None)
    with pytest.raises(ConfigError, match="relu.*known"):
        KERNELS.mlp(torch.randn(1, 4), Norm(torch.ones(4), 1e-6), linear, linear, "relu")


def test_logits_of_chosen_rows_are_capped() -> None:
    head = KERNELS.prepare_linear([100.0 * torch.randn(5, 4)], None)
    hidden, norm = torch.randn(6, 4), Norm(torch.ones(4), 1e-6)
    rows = torch.tensor([4, 0])
    plain = KERNELS.logits(hidden, rows, norm, head, 0.0)
    capped = KERNELS.logits(hidden, rows, norm, head, 3.0)
    assert plain.shape == (2, 5)
    torch.testing.assert_close(capped, 3.0 * (plain / 3.0).tanh())


def test_copies_read_before_they_write() -> None:
    rows = torch.arange(5.0).view(5, 1, 1)
    kv = KVLayer(rows.clone(), -rows)
    KERNELS.copy_rows(kv, torch.tensor([0, 1, 2]), torch.tensor([1, 2, 0]))
    assert kv.k.flatten().tolist() == [2.0, 0.0, 1.0, 3.0, 4.0]
    assert kv.v.flatten().tolist() == [-2.0, -0.0, -1.0, -3.0, -4.0]


def test_qkv_norms_each_head_rotates_and_stores() -> None:
    shape = AttentionShape(num_heads=2, num_kv_heads=1, head_dim=2, scale=1.0, softcap=0.0, window=0)
    angles = torch.arange(8.0)[:, None]
    rope = Rope(angles.cos(), angles.sin())
    unit, head_norm = Norm(torch.ones(4), 0.0), Norm(torch.tensor([1.0, 1.0]), 0.0)
    weight = torch.randn(8, 4)
    weights = AttentionWeights(KERNELS.prepare_linear([weight], None), head_norm, head_norm, rope)
    geometry = StepGeometry(
        (RowRun(0, 4, 2, False),), torch.tensor([4, 5]), torch.tensor([9, 3]), torch.zeros(1, 8, dtype=torch.int32)
    )
    kv = KVLayer(torch.zeros(10, 1, 2), torch.zeros(10, 1, 2))
    hidden = torch.randn(2, 4)
    q = KERNELS.qkv(hidden, unit, weights, shape, KERNELS.begin_step(geometry, []), kv)
    projected = hidden / hidden.pow(2).mean(1, keepdim=True).sqrt() @ weight.T
    for token, (position, location) in enumerate([(4, 9), (5, 3)]):
        turn = torch.polar(torch.tensor(1.0), torch.tensor(float(position)))
        for head, found in enumerate([q[token, 0], q[token, 1], kv.k[location, 0]]):
            raw = projected[token, 2 * head : 2 * head + 2]
            raw = raw / raw.pow(2).mean().sqrt()
            torch.testing.assert_close(found, torch.view_as_real(torch.complex(raw[0], raw[1]) * turn))
        torch.testing.assert_close(kv.v[location, 0], projected[token, 6:8])
    assert kv.k[[0, 1, 2, 4, 5, 6, 7, 8]].abs().sum() == 0
