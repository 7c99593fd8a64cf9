"""The vocabulary split over tensor ranks: embedding, head and loss, for any size of it.

# T tokens  D hidden  V vocabulary  t tensor ranks
Rank r stores rows [r * c, min((r + 1) * c, V)) with c = ceil(V / t); nothing is padded in storage. Logits are padded to
c columns on every rank, and the loss leaves the padding out, so it never takes probability.
"""

from __future__ import annotations

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.tensor import Shard

from megalith.models.loss import logit_gradient, row_statistics
from megalith.parallel.collectives import TensorGroup, reduce_tokens, start_all_reduce
from megalith.parallel.linear import column_linear, local, stored


def vocab_slice(vocab_size: int, size: int, rank: int) -> range:
    """The tokens that a rank holds."""
    chunk = -(-vocab_size // size)
    return range(min(rank * chunk, vocab_size), min((rank + 1) * chunk, vocab_size))


class VocabParallelEmbedding(nn.Module):
    """forward `y = reduce(lookup of own tokens, 0 elsewhere)` over tensor ranks, scattered by tokens or whole."""

    def __init__(self, embedding: nn.Embedding, group: TensorGroup) -> None:
        super().__init__()
        self.group = group
        self.own = vocab_slice(embedding.num_embeddings, group.size, group.rank)
        self.weight = stored(embedding.weight, group, Shard(0))

    def forward(self, tokens_T: Tensor) -> Tensor:
        group, row = self.group, tokens_T - self.own.start
        elsewhere = (row < 0) | (row >= len(self.own))
        rows_TD = F.embedding(row.masked_fill(elsewhere, 0), local(self.weight, Shard(0)))
        x_TD = rows_TD.masked_fill(elsewhere.unsqueeze(1), 0)
        return reduce_tokens(x_TD, group.name, group.size, group.tokens_sharded)


class VocabParallelHead(nn.Module):
    """This rank's slice of the logits, (T, c); the last columns of the last rank may be padding."""

    def __init__(self, head: nn.Linear, group: TensorGroup) -> None:
        super().__init__()
        self.group = group
        self.columns = -(-head.out_features // group.size)
        self.weight = stored(head.weight, group, Shard(0))

    def forward(self, x_TD: Tensor) -> Tensor:
        group, weight = self.group, local(self.weight, Shard(0))
        missing = self.columns - weight.shape[0]
        weight = F.pad(weight, (0, 0, 0, missing)) if missing else weight
        return column_linear(x_TD, [weight], [], group.name, group.size, group.tokens_sharded)[0]


@torch.library.custom_op("megalith::vocab_cross_entropy", mutates_args=())
def vocab_cross_entropy(
    logits_TV: Tensor, targets_T: Tensor, offset: int, valid: int, group: str
) -> tuple[Tensor, Tensor]:
    """forward `log sum exp(logits) - logits[target]` over all ranks' columns, the same on each; keeps its own logits.

    Three all-reduces of (T,): maximum, sum of exponentials, the target's logit. backward is local.
    """
    maximum, total, target = row_statistics(logits_TV, targets_T, offset, valid)
    top = start_all_reduce(maximum.clone(), group, dist.ReduceOp.MAX).wait()
    sums = torch.stack((total * (maximum - top).exp(), target))
    total, target = start_all_reduce(sums, group).wait()
    rest = total.log()
    return (top - target) + rest, top + rest


@vocab_cross_entropy.register_fake
def _(logits_TV, targets_T, offset, valid, group):
    wide = torch.promote_types(logits_TV.dtype, torch.float32)
    return logits_TV.new_empty(targets_T.shape, dtype=wide), logits_TV.new_empty(targets_T.shape, dtype=wide)


def _keep(ctx, inputs, output) -> None:
    logits, targets, ctx.offset, ctx.valid, _ = inputs
    ctx.save_for_backward(logits, targets, output[1])
    ctx.mark_non_differentiable(output[1])


def _backward(ctx, dlosses: Tensor, _: Tensor | None):
    return logit_gradient(dlosses, *ctx.saved_tensors, ctx.offset, ctx.valid), None, None, None, None


vocab_cross_entropy.register_autograd(_backward, setup_context=_keep)


class VocabParallelCrossEntropy(nn.Module):
    """Loss of each token from this rank's slice of the logits; equal on every tensor rank."""

    def __init__(self, vocab_size: int, group: TensorGroup) -> None:
        super().__init__()
        self.group, self.own = group, vocab_slice(vocab_size, group.size, group.rank)

    def forward(self, logits_TV: Tensor, targets_T: Tensor) -> Tensor:
        return vocab_cross_entropy(logits_TV, targets_T, self.own.start, len(self.own), self.group.name)[0]
