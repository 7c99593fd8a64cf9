"""Parallel linear layers: numerical derivatives through two ranks, tokens split or whole, any number of kv heads."""

from __future__ import annotations

from functools import partial

import pytest
import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Placement, Replicate, Shard
from torch.func import functional_call

from megalith.config.model import ModelConfig
from megalith.models.attention import QueryKeyValue
from megalith.parallel.attention import ParallelQueryKeyValue, heads_needed
from megalith.parallel.collectives import TensorGroup, gather_tokens, reduce_tokens
from megalith.parallel.linear import column_linear, row_linear
from tests.parallel.whole import part, replicated, together

T, D, E = 4, 3, 4


def group(tokens_sharded: bool) -> TensorGroup:
    return TensorGroup.of(init_device_mesh("cpu", (dist.get_world_size(),), mesh_dim_names=("tp",)), tokens_sharded)


def whole(*shapes: tuple[int, ...]) -> list[Tensor]:
    """The same on every rank."""
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(shape, dtype=torch.float64, generator=generator).requires_grad_() for shape in shapes]


def column(sp: bool, bias: bool, several: bool) -> float:
    """gradcheck; how far the result is from one process."""
    where = group(sp)
    rows = (E, 2 * E) if several else (E,)
    inputs = whole((T, D), *((n, D) for n in rows), *(((n,) for n in rows) if bias else ()))

    def run(x: Tensor, *parameters: Tensor) -> tuple[Tensor, ...]:
        weights, biases = [part(p, 0) for p in parameters[: len(rows)]], [part(p, 0) for p in parameters[len(rows) :]]
        x_TD = part(x, 0) if sp else replicated(x)
        return tuple(together(y, 1) for y in column_linear(x_TD, weights, biases, where.name, where.size, sp))

    assert torch.autograd.gradcheck(run, inputs)
    x, weights, biases = inputs[0], inputs[1 : 1 + len(rows)], inputs[1 + len(rows) :]
    plain = [x @ w.T + (biases[i] if bias else 0) for i, w in enumerate(weights)]
    return max((a - b).abs().max().item() for a, b in zip(run(*inputs), plain, strict=True))


def row(sp: bool) -> float:
    where = group(sp)
    x, w = whole((T, E), (D, E))

    def run(x: Tensor, w: Tensor) -> Tensor:
        y_TD = row_linear(part(x, 1), part(w, 1), where.name, where.size, sp)
        return together(y_TD, 0) if sp else y_TD

    assert torch.autograd.gradcheck(run, (x, w))
    return (run(x, w) - x @ w.T).abs().max().item()


def reduce(scatter: bool) -> float:
    where = group(scatter)
    (x,) = whole((2, T, D))

    def run(x: Tensor) -> Tensor:
        y = reduce_tokens(part(x, 0)[0], where.name, where.size, scatter)
        return together(y, 0) if scatter else y

    assert torch.autograd.gradcheck(run, (x,))
    return (run(x) - x.sum(0)).abs().max().item()


def qkv(sp: bool, heads: int, kv_heads: int) -> float:
    """The layer as it is, its parameters taken from whole ones; keys and values are compared head by query head."""
    where, H = group(sp), 2
    config = ModelConfig(1, D, heads, 7, T, num_kv_heads=kv_heads, head_dim=H)
    layer = ParallelQueryKeyValue(QueryKeyValue(config).double(), config, where)
    inputs = whole((T, D), (heads * H, D), (heads * H,), (kv_heads * 2 * H, D), (kv_heads * 2 * H,))
    placement: Placement = Shard(0) if kv_heads % where.size == 0 else Replicate()

    def stored(x: Tensor, placement: Placement) -> Tensor:
        local = part(x, 0) if placement.is_shard() else replicated(x)
        return DTensor.from_local(local, where.mesh, [placement], run_check=False)

    def run(x: Tensor, wq: Tensor, bq: Tensor, wkv: Tensor, bkv: Tensor) -> tuple[Tensor, Tensor]:
        parameters = {
            "query.weight": stored(wq, Shard(0)),
            "query.bias": stored(bq, Shard(0)),
            "key_value.weight": stored(wkv, placement),
            "key_value.bias": stored(bkv, placement),
        }
        query, key_value = functional_call(layer, parameters, (part(x, 0) if sp else replicated(x),))
        kept = key_value.unflatten(1, (-1, 2 * H))
        by_query_head = kept.repeat_interleave(heads // where.size // kept.shape[1], 1).flatten(1)
        return together(query, 1), together(by_query_head, 1)

    assert torch.autograd.gradcheck(run, inputs)
    x, wq, bq, wkv, bkv = inputs
    key_value = (x @ wkv.T + bkv).unflatten(1, (kv_heads, -1)).repeat_interleave(heads // kv_heads, 1).flatten(1)
    found = run(*inputs)
    return max((a - b).abs().max().item() for a, b in zip(found, (x @ wq.T + bq, key_value), strict=True))


@pytest.mark.parametrize("several", [False, True], ids=["one", "two"])
@pytest.mark.parametrize("bias", [False, True], ids=["bare", "bias"])
@pytest.mark.parametrize("sp", [False, True], ids=["tp", "tp+sp"])
def test_column(sp: bool, bias: bool, several: bool, pool) -> None:
    assert max(pool(2).run(column, sp, bias, several)) < 1e-12


@pytest.mark.parametrize("sp", [False, True], ids=["tp", "tp+sp"])
def test_row(sp: bool, pool) -> None:
    assert max(pool(2).run(row, sp)) < 1e-12


@pytest.mark.parametrize("scatter", [False, True])
def test_reduce(scatter: bool, pool) -> None:
    assert max(pool(2).run(reduce, scatter)) < 1e-12


@pytest.mark.parametrize(("heads", "kv_heads"), [(4, 4), (4, 2), (4, 1), (6, 3)])
@pytest.mark.parametrize("sp", [False, True], ids=["tp", "tp+sp"])
def test_query_key_value(sp: bool, heads: int, kv_heads: int, pool) -> None:
    assert max(pool(2).run(qkv, sp, heads, kv_heads)) < 1e-12


@pytest.mark.parametrize("heads", [4, 6, 12, 96])
def test_each_query_head_finds_its_key_value_head(heads: int) -> None:
    for size in (n for n in (1, 2, 3, 4, 6, 12) if heads % n == 0):
        for kv_heads in (n for n in range(1, heads + 1) if heads % n == 0):
            found = []
            for rank in range(size):
                kept, read = heads_needed(heads, kv_heads, size, rank)
                assert kept == list(range(kept[0], kept[-1] + 1))
                seen = [kept[i] for i in read]
                found += [head for head in seen for _ in range(heads // size // len(seen))]
            assert found == [head * kv_heads // heads for head in range(heads)]


def contracts(sp: bool) -> None:
    """opcheck of every op that holds a collective."""
    where = group(sp)
    place = (where.name, where.size, sp)
    x, w, v = whole((T, D), (E, D), (2 * E, D))
    dys = whole((2 * T if sp else T, E), (2 * T if sp else T, 2 * E))
    check = partial(torch.library.opcheck, test_utils=("test_schema", "test_autograd_registration", "test_faketensor"))
    for inputs in ([x, w, v], [y.T.contiguous().T for y in (x, w, v)]):
        check(column_linear, (inputs[0], inputs[1:], [], *place))
        check(row_linear, (inputs[0], inputs[1], *place))
        check(reduce_tokens, (inputs[0], *place))
        check(gather_tokens, (inputs[0], *place[:2]))
        backward = torch.ops.megalith.column_linear_backward.default
        detached = [y.detach() for y in inputs]
        for these in (dys, [y.T.contiguous().T for y in dys]):
            dy = [y.detach() for y in these]
            check(backward, (dy, detached[0], detached[1:], True, *place))
    (dy,) = whole((T // 2 if sp else T, E))
    backward = torch.ops.megalith.row_linear_backward.default
    for moved in (dy.detach(), dy.detach().T.contiguous().T):
        check(backward, (moved, *(y.detach() for y in whole((T, D), (E, D))), *place))


@pytest.mark.parametrize("sp", [False, True], ids=["tp", "tp+sp"])
def test_fakes_and_registration_hold_what_the_compiler_expects(sp: bool, pool) -> None:
    pool(2).run(contracts, sp)
