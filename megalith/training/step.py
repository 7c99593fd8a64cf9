"""One optimizer step: the page to open first.

# B sequences  S positions
Micro-batches run forward and backward one after the other; their losses are sums over tokens, divided once by the
number of scored tokens in the whole step on all ranks, so that no layout and no split into micro-batches changes the
result.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule

from megalith.config.recipe import Recipe, Sharding
from megalith.data.loader import MicroBatch
from megalith.models.decoder import Decoder
from megalith.models.dropout import mix
from megalith.parallel.mesh import data_parallel_groups
from megalith.training.clip import clip_grad_norm
from megalith.training.optimizer import set_lr
from megalith.training.schedule import lr_at


@dataclass(frozen=True)
class StepReport:
    """What one step did. `loss`: mean over scored tokens (nats); `grad_norm`: before clipping; `step` counts from 1."""

    step: int
    loss: float
    grad_norm: float
    lr: float
    scored_tokens: int


class TrainStep:
    """Forward, backward, clip, update for one data-parallel rank (and the ranks that share its layers)."""

    def __init__(
        self,
        recipe: Recipe,
        model: Decoder,
        optimizer: torch.optim.Optimizer,
        mesh: DeviceMesh | None,
        device: torch.device,
    ) -> None:
        self.recipe, self.model, self.optimizer, self.mesh, self.device = recipe, model, optimizer, mesh, device

    def __call__(self, step: int, micro_batches: Sequence[MicroBatch]) -> StepReport:
        """Step number `step` (from 1) on this rank's micro-batches."""
        scored_tokens = self._sum(torch.stack([m.loss_mask_BS.sum() for m in micro_batches]).sum())
        loss = torch.zeros((), dtype=torch.float64, device=self.device)
        for micro_batch in micro_batches:
            self._reduce_gradients(last=micro_batch is micro_batches[-1])
            loss += self.forward_backward(step, micro_batch, scored_tokens.clamp(min=1))
        grad_norm = clip_grad_norm(self.model.parameters(), self.recipe.optimizer.clip_grad_norm, self.mesh)
        lr = lr_at(self.recipe.schedule, self.recipe.optimizer.lr, step, self.recipe.train_steps)
        set_lr(self.optimizer, lr)
        self.optimizer.step()
        self.optimizer.zero_grad()
        return StepReport(step, self._sum(loss).item(), grad_norm, lr, int(scored_tokens.item()))

    def forward_backward(self, step: int, micro_batch: MicroBatch, divisor: Tensor) -> Tensor:
        """This micro-batch's share of the step's mean loss, its gradients added to the parameters'."""
        seed = torch.tensor(mix(self.recipe.seed, step, micro_batch.index))
        tokens_BS, targets_BS, mask_BS, documents_BS = micro_batch.on(self.device)
        loss = self.model(tokens_BS, targets_BS, mask_BS, seed, documents_BS) / divisor
        loss.backward()
        return loss.detach()

    def _reduce_gradients(self, last: bool) -> None:
        """Sharded weights reduce with each micro-batch, as their gradients are sharded; else on the last one alone."""
        if isinstance(self.model, FSDPModule):
            self.model.set_requires_gradient_sync(last or self.recipe.layout.sharding is Sharding.FULL)

    def _sum(self, value: Tensor) -> Tensor:
        """The sum of a 0-d tensor over all replicas."""
        value = value.to(self.device)
        for group in data_parallel_groups(self.mesh):
            dist.all_reduce(value, group=group)
        return value
