"""Activation recomputation: which forward work runs again in backward instead of being kept.

`core_attn` and whole layers go through torch's non-reentrant checkpoint. `norm` and `mlp_act` are single cheap ops
whose *output* is what costs (the next linear layer keeps it as its input), so it is that kept tensor which is dropped
and made again. No RNG state is saved anywhere: dropout draws its masks from seeds.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.utils.checkpoint import checkpoint

from megalith.config.recipe import Granularity, Recompute, RecomputeMethod, RecomputeModule
from megalith.models.context import Context
from megalith.models.decoder import Decoder

_again = partial(checkpoint, use_reentrant=False, preserve_rng_state=False)


def recompute(model: Decoder, choice: Recompute) -> None:
    """Make the model's blocks recompute, in place, by replacing `forward` of what is chosen."""
    if choice.granularity is Granularity.SELECTIVE:
        for block in model.blocks:
            recompute_modules(block, choice.modules)
    elif choice.granularity is Granularity.FULL and choice.method is RecomputeMethod.BLOCK:
        for block in list(model.blocks)[: choice.num_layers]:
            recompute_layer(block)
    elif choice.granularity is Granularity.FULL:
        model.run_blocks = partial(_run_in_chunks, model, choice.num_layers)


def recompute_layer(block: nn.Module) -> None:
    """Keep only the block's input."""
    block.forward = partial(_again, block.forward)


def _run_in_chunks(model: Decoder, layers_per_chunk: int, x_TD: Tensor, context: Context) -> Tensor:
    blocks = list(model.blocks)
    for start in range(0, len(blocks), layers_per_chunk):
        x_TD = _again(_run, blocks[start : start + layers_per_chunk], x_TD, context)
    return x_TD


def _run(blocks: list[nn.Module], x_TD: Tensor, context: Context) -> Tensor:
    for block in blocks:
        x_TD = block(x_TD, context)
    return x_TD


def recompute_modules(block: Any, modules: tuple[RecomputeModule, ...]) -> None:
    """Recompute the named parts of one `Block`."""
    if RecomputeModule.CORE_ATTN in modules:
        block.attention.core.forward = partial(_again, block.attention.core.forward)
    remade: list[nn.Module] = []
    if RecomputeModule.NORM in modules:
        remade += [block.attention_norm, block.mlp_norm]
    if RecomputeModule.MLP_ACT in modules:
        remade += [block.mlp.act]
    if remade:
        block.forward = partial(_forward_with_remade_outputs, block.forward, remade)


class _Remake:
    """How to make a dropped tensor again: one function of one tensor that is kept anyway."""

    def __init__(self, function: Callable[[Tensor], Tensor], x: Tensor) -> None:
        self.function, self.x, self.y = function, x, None

    def output(self) -> Tensor:
        """The tensor, made once and shared by all who kept it."""
        if self.y is None:
            with torch.no_grad():
                self.y = self.function(self.x)
        return self.y


def _forward_with_remade_outputs(forward: Callable[..., Tensor], remade: list[nn.Module], *args: Any) -> Tensor:
    """Run a block; where an op keeps the whole output of one of `remade`, keep the way to make it again instead."""
    made: dict[int, tuple[Tensor, _Remake]] = {}

    def watch(module: nn.Module, inputs: tuple[Tensor], y: Tensor) -> None:
        made[y.untyped_storage()._cdata] = (y, _Remake(module.forward, inputs[0].detach()))

    def pack(kept: Tensor) -> Tensor | _Remake:
        y, remake = made.get(kept.untyped_storage()._cdata, (None, None))
        whole = y is not None and remake is not None and kept.shape == y.shape and kept.stride() == y.stride()
        return remake if whole and remake is not None else kept

    def unpack(kept: Tensor | _Remake) -> Tensor:
        return kept.output() if isinstance(kept, _Remake) else kept

    watchers = [module.register_forward_hook(watch) for module in remade]
    try:
        with saved_tensors_hooks(pack, unpack):
            return forward(*args)
    finally:
        for watcher in watchers:
            watcher.remove()
        made.clear()
