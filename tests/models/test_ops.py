"""Custom ops: derivatives, contracts with the compiler, inputs that do not lie in order, extreme values."""

from __future__ import annotations

import math
from itertools import product

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch._subclasses import CrossRefFakeMode

from megalith.models.core_attention import causal_softmax, sdpa
from megalith.models.dropout import dropout
from megalith.models.loss import CHUNK_ELEMENTS, cross_entropy
from tests.models.ops import OPS, Op


@pytest.mark.parametrize("op", OPS, ids=str)
def test_backward_is_the_numerical_derivative(op: Op) -> None:
    assert torch.autograd.gradcheck(op.run, op.inputs())


@pytest.mark.parametrize("op", OPS, ids=str)
def test_fakes_and_registration_hold_what_the_compiler_expects(op: Op) -> None:
    torch.library.opcheck(op.op, (*op.inputs(torch.float32), *op.rest))


def out_of_order(x: Tensor) -> list[Tensor]:
    """The same values in other memory: transposed, and every other element of a larger tensor."""
    transposed = x.detach().transpose(0, -1).contiguous().transpose(0, -1)
    strided = torch.stack((x.detach(), torch.full_like(x, math.nan)), -1)[..., 0]
    return [transposed, strided]


@pytest.mark.parametrize("op", OPS, ids=str)
def test_order_in_memory_changes_nothing(op: Op) -> None:
    inputs = op.inputs()
    y = op.run(*inputs)
    dy = torch.randn(y.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    expected = (y, *torch.autograd.grad(y, inputs, dy))
    for number in range(2):
        moved = tuple(out_of_order(x)[number].requires_grad_() for x in inputs)
        z = op.run(*moved)
        found = (z, *torch.autograd.grad(z, moved, out_of_order(dy)[number]))
        for a, b in zip(found, expected, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("op", OPS, ids=str)
def test_fakes_tell_strides_and_dtypes_of_inputs_out_of_order(op: Op) -> None:
    for dtype, number in product((torch.float32, torch.bfloat16), range(2)):
        moved = tuple(out_of_order(x)[number].requires_grad_() for x in op.inputs(dtype))
        with CrossRefFakeMode():
            y = op.run(*moved)
            torch.autograd.grad(y, moved, out_of_order(torch.ones_like(y))[number])


@pytest.mark.parametrize("op", [op for op in OPS if "cross_entropy" not in op.name], ids=str)
def test_bf16_in_gives_bf16_out_near_fp32(op: Op) -> None:
    inputs = op.inputs(torch.bfloat16)
    y, wide = op.run(*inputs), op.run(*(x.detach().double() for x in inputs))
    assert y.dtype == torch.bfloat16
    assert (y.double() - wide).abs().max() <= 0.02 * wide.abs().max()


def test_dropout_keeps_one_byte_an_element() -> None:
    kept: list[Tensor] = []

    def pack(x: Tensor) -> Tensor:
        kept.append(x)
        return x

    x = torch.randn(32, 16, dtype=torch.bfloat16, requires_grad=True)
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x):
        y, mask = dropout(x, 0.25, torch.tensor(3), torch.tensor(0), 0)
    assert [(k.dtype, tuple(k.shape)) for k in kept] == [(torch.bool, (32, 16))]
    assert torch.equal(y, (x * mask) * (1 / 0.75))
    (dx,) = torch.autograd.grad(y, x, torch.ones_like(y))
    assert torch.equal(dx, (mask / 0.75).bfloat16())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_cross_entropy_in_chunks_is_that_of_torch(dtype: torch.dtype) -> None:
    """Rows of which two fill a chunk, and one is left over."""
    vocab = CHUNK_ELEMENTS // 2
    logits = torch.randn(5, vocab, generator=torch.Generator().manual_seed(0)).to(dtype).requires_grad_()
    targets = torch.tensor([0, vocab - 1, 5, 7, vocab // 2])
    weights = torch.tensor([1.0, 2.0, 0.0, 3.0, 1.0])
    losses, _ = cross_entropy(logits, targets)
    assert losses.dtype == torch.float32
    (gradient,) = torch.autograd.grad(losses @ weights, logits)
    assert gradient.dtype == dtype
    plain = logits.detach().float().requires_grad_()
    expected = F.cross_entropy(plain, targets, reduction="none")
    torch.testing.assert_close(losses, expected, rtol=1e-5, atol=1e-6)
    (expected_gradient,) = torch.autograd.grad(expected @ weights, plain)
    torch.testing.assert_close(
        gradient.float(), expected_gradient, rtol=0.01 if dtype == torch.bfloat16 else 1e-5, atol=1e-9
    )


def test_cross_entropy_of_extreme_logits() -> None:
    inf = math.inf
    logits = torch.tensor([[1e4, -1e4, 0.0], [-1e4, -1e4, -1e4], [0.0, -inf, 0.0], [1e4, 1e4, -inf], [-1e4, 1e4, -inf]])
    targets = torch.tensor([0, 1, 2, 1, 0])
    losses, _ = cross_entropy(logits.requires_grad_(), targets)
    two = math.log(2)
    torch.testing.assert_close(losses, torch.tensor([0.0, math.log(3), two, two, 2e4]))
    (gradient,) = torch.autograd.grad(losses.sum(), logits)
    assert torch.isfinite(gradient).all()
    torch.testing.assert_close(gradient.sum(1), torch.zeros(5), rtol=0, atol=1e-3)  # fp32 near 1e4 has steps of 1e-3
    assert gradient[2, 1] == 0 and gradient[3, 2] == 0


def test_cross_entropy_of_no_rows() -> None:
    losses, _ = cross_entropy(torch.empty(0, 7), torch.empty(0, dtype=torch.int64))
    assert losses.shape == (0,)


@pytest.mark.parametrize("window", [0, 2])
def test_attention_of_extreme_scores_is_finite_and_causal(window: int) -> None:
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(1, 2, 6, 4, generator=generator) for _ in range(3))
    q = (1e4 * q).requires_grad_()
    y, _ = sdpa(q, k, v, 1.0, [], window)
    p = causal_softmax((q @ k.transpose(-1, -2)).unsqueeze(2), 1.0, [], window).squeeze(2)
    torch.testing.assert_close(y, p @ v)
    distance = torch.arange(6)[:, None] - torch.arange(6)[None, :]
    hidden = (distance < 0) | (distance >= (window or 6))
    assert (p[..., hidden] == 0).all()
    torch.testing.assert_close(p.sum(-1), torch.ones(1, 2, 6))
    y.sum().backward()
    assert q.grad is not None and torch.isfinite(q.grad).all()


def test_a_later_key_and_one_behind_the_window_change_nothing() -> None:
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(1, 2, 6, 4, generator=generator) for _ in range(3))
    before = sdpa(q, k, v, 0.5, [], 3)[0][:, :, 4]
    for position in (1, 5):
        other_k, other_v = k.clone(), v.clone()
        other_k[:, :, position], other_v[:, :, position] = 9.0, -9.0
        assert torch.equal(sdpa(q, other_k, other_v, 0.5, [], 3)[0][:, :, 4], before)
