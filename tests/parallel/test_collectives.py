"""Collectives take inputs that do not lie in order, and say so when rows cannot be split."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import init_device_mesh

from megalith.parallel.collectives import (
    TensorGroup,
    gather_tokens,
    reduce_tokens,
    start_all_reduce,
    start_gather,
    start_reduce_scatter,
)

CALLS = {
    "gather": lambda x, g: start_gather(x, g.name, g.size).wait(),
    "reduce-scatter": lambda x, g: start_reduce_scatter(x, g.name, g.size).wait(),
    "all-reduce": lambda x, g: start_all_reduce(x, g.name).wait(),
    "maximum": lambda x, g: start_all_reduce(x, g.name, dist.ReduceOp.MAX).wait(),
    "gather_tokens": lambda x, g: gather_tokens(x, g.name, g.size),
    "reduce_tokens, scattered": lambda x, g: reduce_tokens(x, g.name, g.size, True),
    "reduce_tokens, whole": lambda x, g: reduce_tokens(x, g.name, g.size, False),
}


def expected(call: str, parts: list[Tensor], rank: int) -> Tensor:
    """From all ranks' inputs, without a collective."""
    if call.startswith("gather"):
        return torch.cat(parts)
    if call == "maximum":
        return torch.stack(parts).amax(0)
    total = torch.stack(parts).sum(0)
    return total.chunk(len(parts))[rank] if "scatter" in call else total


def orders(x: Tensor) -> dict[str, Tensor]:
    wide = torch.full((x.shape[0], 2 * x.shape[1]), torch.nan, dtype=x.dtype)
    wide[:, ::2] = x
    return {
        "in order": x.clone(),
        "transposed": x.T.contiguous().T,
        "every other column": wide[:, ::2],
        "one row for all": x[:1].expand_as(x),
    }


def wrong_results() -> list[str]:
    group = TensorGroup.of(init_device_mesh("cpu", (dist.get_world_size(),), mesh_dim_names=("tp",)), True)
    generator = torch.Generator().manual_seed(0)
    parts = [torch.randn(4, 6, dtype=torch.float64, generator=generator) for _ in range(group.size)]
    wrong = []
    for order in orders(parts[0]):
        inputs = [orders(part)[order] for part in parts]
        for name, call in CALLS.items():
            found = call(orders(parts[group.rank])[order], group)
            if not torch.allclose(found, expected(name, inputs, group.rank), rtol=0, atol=1e-14):
                wrong.append(f"{name} of {order}")
    return wrong


@pytest.mark.parametrize("world_size", [2, 4])
def test_order_in_memory_changes_nothing(world_size: int, pool) -> None:
    assert pool(world_size).run(wrong_results) == [[]] * world_size


def inputs_after() -> list[bool]:
    """Whether the ops, which promise to change no argument, left it as it was."""
    group = TensorGroup.of(init_device_mesh("cpu", (dist.get_world_size(),), mesh_dim_names=("tp",)), True)
    same = []
    for name in ("gather_tokens", "reduce_tokens, scattered", "reduce_tokens, whole"):
        x = torch.full((4, 3), 1.0 + group.rank)
        CALLS[name](x, group)
        same.append(bool((x == 1.0 + group.rank).all()))
    return same


def test_ops_leave_their_inputs(pool) -> None:
    assert pool(2).run(inputs_after) == [[True] * 3] * 2


def refusal() -> str:
    group = TensorGroup.of(init_device_mesh("cpu", (dist.get_world_size(),), mesh_dim_names=("tp",)), True)
    with pytest.raises(ValueError) as caught:
        start_reduce_scatter(torch.zeros(5, 3), group.name, group.size)
    return str(caught.value)


def test_rows_that_cannot_be_scattered(pool) -> None:
    assert pool(2).run(refusal)[0] == "5 rows cannot be scattered over 2 ranks; choose a multiple of 2"


def groups_seen() -> np.ndarray:
    """A reduction over each of two disjoint groups, at the same time, in one world of four."""
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("model", "tp"))
    group = TensorGroup.of(mesh, False)
    return start_all_reduce(torch.full((2,), float(10 ** dist.get_rank())), group.name).wait().numpy()


def test_a_collective_stays_in_its_group(pool) -> None:
    assert [values.tolist() for values in pool(4).run(groups_seen)] == [[11.0, 11.0]] * 2 + [[1100.0, 1100.0]] * 2
