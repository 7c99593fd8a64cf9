"""Any vocabulary over any number of ranks: padding takes no probability, uneven slices train as one."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor

from megalith.data.loader import MicroBatch
from megalith.parallel.collectives import TensorGroup
from megalith.parallel.vocab import (
    VocabParallelCrossEntropy,
    VocabParallelEmbedding,
    VocabParallelHead,
    vocab_slice,
)
from megalith.parallelize.apply import build_model
from megalith.training.optimizer import build_optimizer
from megalith.training.step import TrainStep
from tests.distributed.parity import Case, fill, whole
from tests.parallel.layouts import mesh_of

T, D = 8, 6


def group(tokens_sharded: bool) -> TensorGroup:
    return TensorGroup.of(init_device_mesh("cpu", (dist.get_world_size(),), mesh_dim_names=("tp",)), tokens_sharded)


@dataclass(frozen=True)
class Found:
    """Of the split head and loss: logits of real tokens, losses, gradients of head and input; `padding`: its logits."""

    logits: np.ndarray
    losses: np.ndarray
    head: np.ndarray
    x: np.ndarray
    padding: np.ndarray


def inputs(vocab_size: int, level: float) -> tuple[Tensor, Tensor, Tensor]:
    """x, the head's weight, targets; every real logit lies around `level`, while padding's is 0."""
    generator = torch.Generator().manual_seed(vocab_size)
    x, weight = (torch.randn(shape, dtype=torch.float64, generator=generator) for shape in ((T, D), (vocab_size, D)))
    x[:, 0], weight[:, 0] = 1.0, level
    return x, weight, torch.randint(0, vocab_size, (T,), generator=generator)


def gathered(x: Tensor, where: TensorGroup) -> list[Tensor]:
    parts = [torch.empty_like(x) for _ in range(where.size)]
    dist.all_gather(parts, x.contiguous())
    return parts


def split_loss(vocab_size: int, level: float, sp: bool) -> Found:
    where = group(sp)
    x, weight, targets = inputs(vocab_size, level)
    mine = (x.chunk(where.size)[where.rank] if sp else x).clone().requires_grad_()
    linear = nn.Linear(D, vocab_size, bias=False, dtype=torch.float64)
    with torch.no_grad():
        linear.weight.copy_(weight)
    head, loss = VocabParallelHead(linear, where), VocabParallelCrossEntropy(vocab_size, where)
    logits = head(mine)
    losses = loss(logits, targets)
    (losses * torch.arange(1, T + 1)).sum().backward()
    slices = [len(vocab_slice(vocab_size, where.size, rank)) for rank in range(where.size)]
    columns = gathered(logits.detach(), where)
    real = torch.cat([column[:, :n] for column, n in zip(columns, slices, strict=True)], 1)
    padding = torch.cat([column[:, n:] for column, n in zip(columns, slices, strict=True)], 1)
    assert isinstance(head.weight.grad, DTensor) and mine.grad is not None
    dx = torch.cat(gathered(mine.grad, where)) if sp else mine.grad
    dw = head.weight.grad.full_tensor()
    return Found(*(y.detach().numpy() for y in (real, losses, dw, dx, padding)))


@pytest.mark.parametrize("level", [-60.0, 60.0], ids=["padding would win", "padding would lose"])
@pytest.mark.parametrize("sp", [False, True], ids=["tp", "tp+sp"])
@pytest.mark.parametrize(("size", "vocab_size"), [(2, 101), (2, 1), (4, 101), (4, 5), (4, 8), (4, 3)])
def test_loss_is_that_of_the_real_tokens(size: int, vocab_size: int, sp: bool, level: float, pool) -> None:
    x, weight, targets = inputs(vocab_size, level)
    x, weight = x.requires_grad_(), weight.requires_grad_()
    logits = x @ weight.T
    losses = F.cross_entropy(logits, targets, reduction="none")
    dx, dw = torch.autograd.grad((losses * torch.arange(1, T + 1)).sum(), (x, weight))
    expected = [y.detach().numpy() for y in (logits, losses, dw, dx)]
    for found in pool(size).run(split_loss, vocab_size, level, sp):
        assert found.padding.shape[1] == -(-vocab_size // size) * size - vocab_size
        assert (found.padding == 0).all()
        for a, b in zip((found.logits, found.losses, found.head, found.x), expected, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-11)


def split_embedding(vocab_size: int, sp: bool) -> tuple[np.ndarray, np.ndarray]:
    where = group(sp)
    _, weight, tokens = inputs(vocab_size, 1.0)
    embedding = nn.Embedding(vocab_size, D, dtype=torch.float64)
    with torch.no_grad():
        embedding.weight.copy_(weight)
    split = VocabParallelEmbedding(embedding, where)
    y = split(tokens)
    factor = torch.arange(1.0, T + 1, dtype=torch.float64).unsqueeze(1)
    (y * (factor.chunk(where.size)[where.rank] if sp else factor)).sum().backward()
    assert isinstance(split.weight.grad, DTensor)
    found = torch.cat(gathered(y.detach(), where)) if sp else y.detach()
    return found.numpy(), split.weight.grad.full_tensor().numpy()


@pytest.mark.parametrize("sp", [False, True], ids=["tp", "tp+sp"])
@pytest.mark.parametrize(("size", "vocab_size"), [(2, 101), (4, 101), (4, 7)])
def test_embedding_is_that_of_one_process(size: int, vocab_size: int, sp: bool, pool) -> None:
    _, weight, tokens = inputs(vocab_size, 1.0)
    gradient = torch.zeros_like(weight).index_add_(
        0, tokens, torch.arange(1.0, T + 1, dtype=torch.float64).unsqueeze(1).expand(T, D)
    )
    for found, found_gradient in pool(size).run(split_embedding, vocab_size, sp):
        np.testing.assert_array_equal(found, weight[tokens].numpy())
        np.testing.assert_allclose(found_gradient, gradient.numpy(), rtol=1e-12)


def step_with_few_tokens(case: Case, vocab_size: int) -> tuple[float, float, dict[str, np.ndarray]]:
    """One step of a whole model: loss, norm, weights after it; on one process where `case` has one rank."""
    recipe = case.recipe(vocab_size=vocab_size)
    mesh = mesh_of(recipe.layout, case.dp) if case.dp * case.tp > 1 else None
    model = build_model(recipe, mesh, torch.device("cpu"), main_dtype=torch.float64)
    fill(model)
    step = TrainStep(recipe, model, build_optimizer(model, recipe.optimizer), mesh, torch.device("cpu"))
    tokens = torch.arange(26).reshape(2, 13) % vocab_size
    report = step(1, [MicroBatch(tokens[:, :-1], tokens[:, 1:], torch.ones(2, 12, dtype=torch.bool), 0)])
    return report.loss, report.grad_norm, {n: whole(p).numpy() for n, p in model.named_parameters()}


@pytest.mark.parametrize("case", [Case(tp=4), Case(tp=4, sp=True, family="llama", kv_heads=1)], ids=str)
def test_the_smallest_vocabulary_over_four_ranks_trains(case: Case, pool) -> None:
    loss, norm, weights = step_with_few_tokens(Case(family=case.family, kv_heads=case.kv_heads), 7)
    for found_loss, found_norm, found in pool(4).run(step_with_few_tokens, case, 7):
        assert found_loss == pytest.approx(loss, rel=1e-9)
        assert found_norm == pytest.approx(norm, rel=1e-9)
        for name, weight in weights.items():
            np.testing.assert_allclose(found[name], weight, rtol=1e-9, atol=1e-12, err_msg=name)


@pytest.mark.parametrize("vocab_size", [1, 3, 5, 8, 101, 50257])
@pytest.mark.parametrize("size", [1, 2, 3, 4, 8])
def test_slices_follow_one_another(vocab_size: int, size: int) -> None:
    slices = [vocab_slice(vocab_size, size, rank) for rank in range(size)]
    assert [token for part in slices for token in part] == list(range(vocab_size))
    assert max(len(part) for part in slices) == -(-vocab_size // size)
