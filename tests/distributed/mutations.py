"""Deliberate faults, each met in a public framework; the parity test must see every one of them.

Each takes a built model and its step and breaks them in place.
"""

from __future__ import annotations

from dataclasses import replace
from types import MethodType

import torch
from torch import Tensor
from torch.distributed.tensor import Replicate

from megalith.data.loader import MicroBatch
from megalith.models.context import Context
from megalith.models.core_attention import CoreAttention
from megalith.models.decoder import Decoder
from megalith.parallel.attention import ParallelQueryKeyValue
from megalith.parallel.linear import RowParallelLinear, local
from megalith.parallel.norm import ParallelNorm, ParallelPosition
from megalith.training.step import TrainStep


def no_sum_of_norm_gradients(model: Decoder, step: TrainStep) -> None:
    """Norm weights under sequence parallelism keep the gradient of their own tokens (Megatron-LM #1446)."""
    for module in model.modules():
        if isinstance(module, ParallelNorm | ParallelPosition):
            module.gradient = Replicate()


def row_bias_on_each_rank(model: Decoder, step: TrainStep) -> None:
    """The bias of a row-parallel layer is added before the sum, so once for each rank."""
    for module in model.modules():
        if isinstance(module, RowParallelLinear):

            def forward(self: RowParallelLinear, x: Tensor, plain=module.forward) -> Tensor:
                assert self.bias is not None
                return plain(x) + (self.group.size - 1) * local(self.bias, Replicate())

            module.forward = MethodType(forward, module)


def mean_of_means(model: Decoder, step: TrainStep) -> None:
    """Each micro-batch divides by its own scored tokens, and the means are averaged (a bug of 2024)."""
    forward_backward = step.forward_backward

    def own_divisor(number: int, micro_batch: MicroBatch, divisor: Tensor) -> Tensor:
        batch = step.recipe.batch
        micro_batches = batch.global_batch_size // batch.micro_batch_size
        return forward_backward(number, micro_batch, micro_batch.loss_mask_BS.sum() * micro_batches)

    step.forward_backward = own_divisor  # type: ignore[method-assign]


def first_heads_slopes(model: Decoder, step: TrainStep) -> None:
    """Every rank uses the ALiBi slopes of the first heads (BigScience #244)."""
    for core in (module for module in model.modules() if isinstance(module, CoreAttention)):
        core.slopes = [2.0 ** -(8 / 12 * (i + 1)) for i in range(len(core.slopes))]


def own_gradient_of_shared_heads(model: Decoder, step: TrainStep) -> None:
    """Key/value heads that several ranks hold keep their own rank's gradient (bigcode Megatron-LM #35)."""

    def needed(self: ParallelQueryKeyValue, parameter: torch.nn.Parameter) -> Tensor:
        whole = local(parameter, Replicate()).unflatten(0, (-1, self.head_rows))
        return whole[self.heads].flatten(0, 1)

    for module in model.modules():
        if isinstance(module, ParallelQueryKeyValue):
            module._needed = MethodType(needed, module)


def chunk_input_for_every_layer(model: Decoder, step: TrainStep) -> None:
    """Within a recomputed chunk of two layers each gets the chunk's input (Megatron-LM commit 6771c773)."""

    def run(x_TD: Tensor, context: Context) -> Tensor:
        y_TD = chunk_TD = x_TD
        for number, block in enumerate(model.blocks):
            chunk_TD = y_TD if number % 2 == 0 else chunk_TD
            y_TD = block(chunk_TD, context)
        return y_TD

    model.run_blocks = run


def maximum_for_minimum(model: Decoder, step: TrainStep) -> None:
    """Gradients below the limit are scaled up to it as well (DeepSpeed #5150)."""

    def scale(optimizer: torch.optim.Optimizer, *_) -> None:
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                parameter.grad.mul_(3.0)

    step.optimizer.register_step_pre_hook(scale)


def attention_across_documents(model: Decoder, step: TrainStep) -> None:
    """Boundaries of documents reach the positions and not the attention (torchtitan #2849, in part)."""
    run = model.run_blocks

    def without(x_TD: Tensor, context: Context) -> Tensor:
        return run(x_TD, replace(context, documents_BS=None))

    model.run_blocks = without


def positions_that_go_on(model: Decoder, step: TrainStep) -> None:
    """Positions count through the row as if it were one document (torchtitan #2849)."""
    embed = model.embedding.forward
    model.embedding.forward = lambda tokens_BS, seed, positions_BS=None: embed(tokens_BS, seed)
