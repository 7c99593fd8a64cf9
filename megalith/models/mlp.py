"""The feed-forward half of a block.

# T tokens  D hidden  F feed-forward width
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from megalith.config.model import Activation, ModelConfig


@torch.library.custom_op("megalith::swiglu", mutates_args=())
def swiglu(gate_up: Tensor, block: int) -> Tensor:
    """forward `y = silu(gate) * up` of (T, 2F) in alternating blocks of gate and up; keeps gate_up alone.

    arXiv:2002.05202; plain torch would keep silu(gate) and its factors as well, 2F elements a token more.
    """
    gate, up = gate_up.unflatten(-1, (-1, 2, block)).unbind(-2)
    return (F.silu(gate) * up).flatten(-2).contiguous()


@swiglu.register_fake
def _(gate_up: Tensor, block: int) -> Tensor:
    return gate_up.new_empty((*gate_up.shape[:-1], gate_up.shape[-1] // 2))


@torch.library.custom_op("megalith::swiglu_backward", mutates_args=())
def swiglu_backward(dy: Tensor, gate_up: Tensor, block: int) -> Tensor:
    """backward of `swiglu`, in blocks as gate_up."""
    gate, up = gate_up.unflatten(-1, (-1, 2, block)).unbind(-2)
    dy = dy.unflatten(-1, (-1, block))
    d = torch.empty_like(gate_up)
    dgate, dup = d.unflatten(-1, (-1, 2, block)).unbind(-2)
    dup.copy_(dy * F.silu(gate))
    dgate.copy_(torch.ops.aten.silu_backward(dy * up, gate))
    return d


@swiglu_backward.register_fake
def _(dy: Tensor, gate_up: Tensor, block: int) -> Tensor:
    return torch.empty_like(gate_up)


def _keep(ctx, inputs, output) -> None:
    ctx.save_for_backward(inputs[0])
    ctx.block = inputs[1]


def _backward(ctx, dy: Tensor):
    return swiglu_backward(dy, ctx.saved_tensors[0], ctx.block), None


swiglu.register_autograd(_backward, setup_context=_keep)


class Gelu(nn.Module):
    """Gaussian error linear unit, exact or by tanh."""

    def __init__(self, tanh: bool) -> None:
        super().__init__()
        self.approximate = "tanh" if tanh else "none"

    def forward(self, x_TF: Tensor) -> Tensor:
        return F.gelu(x_TF, approximate=self.approximate)


class SwiGlu(nn.Module):
    """`silu(gate) * up` of a projection stored in blocks (see `ModelConfig.gate_block`)."""

    def __init__(self, block: int) -> None:
        super().__init__()
        self.block = block

    def forward(self, gate_up_TF: Tensor) -> Tensor:
        return swiglu(gate_up_TF, self.block)


class GeluMlp(nn.Module):
    """`down(gelu(up(x)))`."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.up = nn.Linear(config.hidden_size, config.ffn_width, bias=config.linear_bias)
        self.act = Gelu(config.activation is Activation.GELU_TANH)
        self.down = nn.Linear(config.ffn_width, config.hidden_size, bias=config.linear_bias)

    def forward(self, x_TD: Tensor) -> Tensor:
        return self.down(self.act(self.up(x_TD)))


class GatedMlp(nn.Module):
    """`down(silu(gate(x)) * up(x))`, gate and up in one projection."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.gate_up = nn.Linear(config.hidden_size, 2 * config.ffn_width, bias=config.linear_bias)
        self.act = SwiGlu(config.gate_block)
        self.down = nn.Linear(config.ffn_width, config.hidden_size, bias=config.linear_bias)

    def forward(self, x_TD: Tensor) -> Tensor:
        return self.down(self.act(self.gate_up(x_TD)))


def make_mlp(config: ModelConfig) -> GeluMlp | GatedMlp:
    return GatedMlp(config) if config.gated else GeluMlp(config)
