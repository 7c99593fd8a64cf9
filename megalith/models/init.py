"""First values of the weights, the same whatever the layout.

Each block of rows of each parameter has its own seed, drawn from the run's seed and the parameter's name; a rank draws
only the blocks that it holds a part of.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable

import torch
from torch import Tensor, nn

from megalith.config.model import ModelConfig
from megalith.models.dropout import mix

ROWS_PER_BLOCK = 64


def init_std(name: str, config: ModelConfig) -> float | None:
    """Standard deviation of a weight; None for a norm's weight (ones) and 0 for a bias (zeros).

    Projections back into the residual stream are scaled by 1/sqrt(2 L), as GPT-2 and Megatron do.
    """
    if name.endswith("bias"):
        return 0.0
    if "norm" in name:
        return None
    residual = name.endswith(("attention.output.weight", "mlp.down.weight"))
    return config.init_std / math.sqrt(2 * config.num_layers) if residual else config.init_std


def draw(name: str, shape: tuple[int, ...], rows: range, config: ModelConfig, seed: int) -> Tensor:
    """Rows `rows` of parameter `name` of full `shape`, fp32 on the CPU."""
    std = init_std(name, config)
    if std is None or std == 0.0:
        return torch.full((len(rows), *shape[1:]), 1.0 if std is None else 0.0)
    out = torch.empty((len(rows), *shape[1:]))
    for block in range(rows.start // ROWS_PER_BLOCK, math.ceil(rows.stop / ROWS_PER_BLOCK)):
        first = block * ROWS_PER_BLOCK
        size = min(ROWS_PER_BLOCK, shape[0] - first)
        generator = torch.Generator().manual_seed(mix(seed, zlib.crc32(name.encode()), block))
        values = torch.empty((size, *shape[1:])).normal_(0.0, std, generator=generator)
        low, high = max(first, rows.start), min(first + size, rows.stop)
        out[low - rows.start : high - rows.start] = values[low - first : high - first]
    return out


def whole(parameter: nn.Parameter) -> tuple[Tensor, tuple[range, ...]]:
    """A plain parameter and the index ranges that it holds: all."""
    return parameter, tuple(range(n) for n in parameter.shape)


@torch.no_grad()
def initialise(
    model: nn.Module,
    config: ModelConfig,
    seed: int,
    share: Callable[[nn.Parameter], tuple[Tensor, tuple[range, ...]]] = whole,
) -> None:
    """Fill every parameter; `share` gives the tensor to fill and the index range of each dimension that it holds."""
    for name, parameter in model.named_parameters():
        tensor, (rows, *rest) = share(parameter)
        values = draw(name, tuple(parameter.shape), rows, config, seed)
        for dim, part in enumerate(rest, start=1):
            values = values.narrow(dim, part.start, len(part))
        tensor.copy_(values)
