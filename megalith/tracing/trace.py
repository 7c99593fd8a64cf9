"""What one part of a model costs one rank: the very modules that the loop trains, run forward and backward and metered.

# B sequences  S positions  T = B * S tokens  D hidden
`trace` runs on fake tensors in a fake world; `measure`, which it calls, runs on real ones just as well.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import StrEnum

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode, unset_fake_temporarily
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor

from megalith.config.model import Position
from megalith.config.recipe import Precision, Recipe
from megalith.models.context import Context
from megalith.models.decoder import Decoder
from megalith.models.positions import rope_table
from megalith.parallel.costs import Collective, CollectiveKind
from megalith.parallel.mesh import AXES, make_mesh
from megalith.parallelize.apply import assemble
from megalith.tracing.fake import fake_world
from megalith.tracing.meter import Meter


class Part(StrEnum):
    """What can be traced alone."""

    EMBEDDING = "embedding"
    LAYER = "layer"
    HEAD = "head"  # final norm, logits and loss


@dataclass(frozen=True)
class Pass:
    """Work of one direction for one micro-batch on one rank. `Collective.group` is a mesh axis."""

    flops: int
    collectives: tuple[Collective, ...]


@dataclass(frozen=True)
class Trace:
    """What a part costs rank 0 for one micro-batch.

    `kept_bytes`: what lies there for backward after the forward, with the part's input (where it is kept) and without
    its output, which the next part counts. `peak_bytes`: the most that lay there at once besides weights, with input,
    output and weight gradients. `sums`: gradients that tensor ranks sum once a step, before the data axes do.
    """

    num_parameters: int
    kept_bytes: int
    peak_bytes: int
    forward: Pass
    backward: Pass
    sums: tuple[Collective, ...]

    @property
    def model_flops(self) -> int:
        """Without recomputation, whatever the recipe and the kernel do again: each product has two in backward."""
        return 3 * self.forward.flops

    @property
    def hardware_flops(self) -> int:
        """All that is computed."""
        return self.forward.flops + self.backward.flops


def trace(recipe: Recipe, part: Part) -> Trace:
    """Rank 0's cost of `part`, from fake tensors; a layer stands for all that recompute alike.

    Raises RuntimeError where this process has joined a process group.
    """
    with fake_world(recipe.layout.tensor_parallel_size):
        mesh = make_mesh(recipe.layout, recipe.layout.tensor_parallel_size)
        with FakeTensorMode(allow_non_fake_inputs=True):  # the meta weights, whose place fake ones take
            return measure(one_layer(recipe, mesh), recipe, part, mesh)


def one_layer(recipe: Recipe, mesh: DeviceMesh | None) -> Decoder:
    """The recipe's model with one layer, without values, in the dtype it computes in, on the CPU (or fake)."""
    with unset_fake_temporarily():
        recipe = replace(recipe, model=replace(recipe.model, num_layers=1))
        model = assemble(recipe, mesh, compute_dtype(recipe))
    model.to_empty(device="cpu")
    model.tie()
    return model


def compute_dtype(recipe: Recipe) -> torch.dtype:
    """The dtype of weights and activations in forward and backward."""
    return torch.bfloat16 if recipe.precision is Precision.BF16 else torch.float32


def measure(model: Decoder, recipe: Recipe, part: Part, mesh: DeviceMesh | None) -> Trace:
    """Run `part` of `model`, whose layers the recipe describes, once forward and backward on this rank."""
    modules, run, x_TD = _prepared(model, recipe, part)
    with Meter() as meter:
        y = run(x_TD.clone())  # a copy, so that it lives as long as the part keeps it and no longer
        kept_bytes = meter.live_bytes() - y.untyped_storage().nbytes()
        forward = Pass(meter.flops, _by_axis(meter.collectives, mesh))
        y.backward(torch.ones_like(y))
    parameters = [parameter for module in modules for parameter in module.parameters()]
    backward = Pass(meter.flops - forward.flops, _by_axis(meter.collectives, mesh)[len(forward.collectives) :])
    return Trace(
        num_parameters=sum(_local(parameter).numel() for parameter in parameters),
        kept_bytes=kept_bytes,
        peak_bytes=meter.peak_bytes,
        forward=forward,
        backward=backward,
        sums=tuple(total for parameter in parameters for total in _sums(parameter.grad)),
    )


def _prepared(model: Decoder, recipe: Recipe, part: Part) -> tuple[list[nn.Module], Callable[[Tensor], Tensor], Tensor]:
    """The part's modules, a function that runs them, and its input, which wants a gradient."""
    config, batch, layout = recipe.model, recipe.batch, recipe.layout
    first = next(model.parameters())
    device, dtype = first.device, first.dtype
    ids_BS = torch.zeros((batch.micro_batch_size, batch.seq_len), dtype=torch.int64, device=device)
    seed = torch.zeros((), dtype=torch.int64)
    if part is Part.EMBEDDING:
        return [model.embedding], lambda _: model.embedding(ids_BS, seed), torch.zeros((), device=device)
    rows = ids_BS.numel() // (layout.tensor_parallel_size if layout.sequence_parallel else 1)
    x_TD = torch.zeros((rows, config.hidden_size), dtype=dtype, device=device, requires_grad=True)
    if part is Part.HEAD:
        head = [] if config.tied_embeddings else [model.head]
        return [model.final_norm, *head], lambda x: model.score(x, ids_BS), x_TD
    rope = rope_table(config, batch.seq_len, device) if config.position is Position.ROPE else None
    context = Context(batch.micro_batch_size, rope, seed)
    return list(model.blocks), lambda x: model.run_blocks(x, context), x_TD


def _local(tensor: Tensor) -> Tensor:
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def _by_axis(collectives: list[Collective], mesh: DeviceMesh | None) -> tuple[Collective, ...]:
    axes = {str(mesh.get_group(axis).group_name): axis for axis in AXES} if mesh is not None else {}
    return tuple(replace(collective, group=axes[collective.group]) for collective in collectives)


def _sums(gradient: Tensor | None) -> list[Collective]:
    """The all-reduces that a gradient's placements still ask for."""
    if not isinstance(gradient, DTensor):
        return []
    names = gradient.device_mesh.mesh_dim_names or ()
    partial = [name for name, placement in zip(names, gradient.placements, strict=True) if placement.is_partial()]
    return [Collective(CollectiveKind.ALL_REDUCE, name, _local(gradient).nbytes) for name in partial]
