"""A compiled layer keeps for backward what the eager one keeps: the opaque ops leave the compiler nothing to merge."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks
from torch.distributed.tensor import DTensor

from megalith.config.model import Attention, Position
from megalith.config.recipe import Recipe
from megalith.models.context import Context
from megalith.models.dropout import Dropout
from megalith.models.positions import rope_table
from megalith.parallel.mesh import make_mesh
from megalith.parallelize.compiled import compile_blocks
from megalith.tracing.trace import Part, one_layer, trace
from tests.distributed.pool import WorkerPool
from tests.tracing.cases import CORE_ATTN, recipe


def storage_key(tensor: Tensor) -> int:
    return (tensor.to_local() if isinstance(tensor, DTensor) else tensor).untyped_storage().data_ptr()


def kept_by_compiled(case: Recipe) -> int:
    """Bytes of the storages that the compiled layer saves, without those that all layers share."""
    torch._dynamo.reset()  # it gives up on code that was compiled for too many kinds of model
    model = one_layer(case, make_mesh(case.layout, dist.get_world_size()) if dist.is_initialized() else None)
    batch, size = case.batch, case.layout.tensor_parallel_size if case.layout.sequence_parallel else 1
    rope = rope_table(case.model, batch.seq_len, torch.device("cpu")) if case.model.position is Position.ROPE else None
    seed = torch.zeros((), dtype=torch.int64)
    context = Context(batch.micro_batch_size, rope, seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(0.01)
    sites = [module.site for module in model.modules() if isinstance(module, Dropout)]
    others = {storage_key(tensor) for tensor in (*model.parameters(), *(rope or ()), seed, *sites)}
    kept: dict[int, Tensor] = {}

    def pack(tensor: Tensor) -> Tensor:
        kept[storage_key(tensor)] = tensor
        return tensor

    rows = batch.micro_batch_size * batch.seq_len // size
    x_TD = torch.ones((rows, case.model.hidden_size), dtype=torch.bfloat16, requires_grad=True)
    compile_blocks(model)
    with saved_tensors_hooks(pack, lambda tensor: tensor):
        y_TD = model.run_blocks(x_TD.clone(), context)
    y_TD.sum().backward()
    return sum(tensor.untyped_storage().nbytes() for key, tensor in kept.items() if key not in others)


def test_tensor_and_sequence_parallel_layer(two_workers: WorkerPool) -> None:
    case = recipe("gpt-tiny", 2, 32, 2, True)
    assert two_workers.run(kept_by_compiled, case, limit_s=300) == [trace(case, Part.LAYER).kept_bytes] * 2


@pytest.mark.slow
@pytest.mark.parametrize("attention", Attention)
@pytest.mark.parametrize("family", ["gpt-tiny", "bloom-tiny", "llama-tiny"])
def test_families(family: str, attention: Attention, two_workers: WorkerPool) -> None:
    alone = recipe(family, 2, 32, attention=attention)
    assert kept_by_compiled(alone) == trace(alone, Part.LAYER).kept_bytes
    for sequence_parallel in (False, True):
        case = recipe(family, 2, 32, 2, sequence_parallel, attention=attention)
        assert two_workers.run(kept_by_compiled, case, limit_s=300) == [trace(case, Part.LAYER).kept_bytes] * 2


@pytest.mark.slow
def test_core_attention_recomputed(two_workers: WorkerPool) -> None:
    """The compiler makes the output of core attention again as well, which eager code keeps for the projection."""
    case = recipe("gpt-tiny", 2, 32, 2, True, CORE_ATTN)
    eager = trace(case, Part.LAYER).kept_bytes
    output = 2 * 32 * case.model.hidden_size // 2 * 2
    assert two_workers.run(kept_by_compiled, case, limit_s=300) == [eager - output] * 2
