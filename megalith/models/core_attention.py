"""softmax(q k^T) v over one micro-batch, causal: `unfused` keeps the scores as the 2022 papers count, `sdpa` does not.

# T tokens = B sequences * S positions (batch first)  N query heads  K key/value heads  G = N / K  H head width
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import register_flop_formula, sdpa_backward_flop_count, sdpa_flop_count

from megalith.config.model import Attention, ModelConfig, Position
from megalith.models.context import Context
from megalith.models.dropout import Dropout
from megalith.models.positions import alibi_slopes


def attention_bias(
    seq_len: int, slopes: list[float], window: int, like: Tensor, documents_BS: Tensor | None = None
) -> Tensor:
    """(B or 1, N or 1, S, S) to add to the scores: -inf where the query does not look, ALiBi's penalty elsewhere.

    It looks neither ahead nor `window` or more behind itself (0 is no window), nor into another of the documents, where
    they are given. Cheap enough to build inside each op, so that no layer keeps one.
    """
    position = torch.arange(seq_len, device=like.device)
    distance = position[:, None] - position[None, :]
    hidden = (distance < 0)[None, None]
    if window:
        hidden |= distance >= window
    if documents_BS is not None:
        hidden = hidden | (documents_BS[:, None, :, None] != documents_BS[:, None, None, :])
    bias = torch.zeros(hidden.shape, dtype=like.dtype, device=like.device).masked_fill_(hidden, -math.inf)
    if not slopes:
        return bias
    return bias - torch.tensor(slopes, dtype=like.dtype, device=like.device)[:, None, None] * distance.clamp_(min=0)


@torch.library.custom_op("megalith::causal_softmax", mutates_args=())
def causal_softmax(
    scores: Tensor, scale: float, slopes: list[float], window: int, documents_BS: Tensor | None = None
) -> Tensor:
    """forward `p = softmax(scale * scores + bias)` over the last dimension of (B, K, G, S, S); keeps p alone.

    No mask is kept: where p is 0 its gradient is 0. Softmax runs in fp32 whatever the dtype of the scores.
    """
    wide = torch.promote_types(scores.dtype, torch.float32)
    like = torch.empty(0, dtype=wide, device=scores.device)
    bias = attention_bias(scores.shape[-1], slopes, window, like, documents_BS)
    bias = bias.unflatten(1, scores.shape[1:3]) if slopes else bias.unsqueeze(2)
    return torch.softmax(torch.add(bias, scores, alpha=scale), -1).to(scores.dtype)


@causal_softmax.register_fake
def _(scores: Tensor, scale: float, slopes: list[float], window: int, documents_BS: Tensor | None = None) -> Tensor:
    return torch.empty_like(scores, memory_format=torch.contiguous_format)


def _keep_softmax(ctx, inputs, output) -> None:
    ctx.scale = inputs[1]
    ctx.save_for_backward(output)


def _softmax_backward(ctx, dp: Tensor):
    (p,) = ctx.saved_tensors
    return torch.ops.aten._softmax_backward_data(dp, p, -1, p.dtype).mul_(ctx.scale), None, None, None, None


causal_softmax.register_autograd(_softmax_backward, setup_context=_keep_softmax)


def _for_kernel(x: Tensor, copies: int = 1) -> Tensor:
    """Each head `copies` times, its elements side by side: the kernels read them so whatever the strides say."""
    x = x.repeat_interleave(copies, 1) if copies > 1 else x
    return x if x.stride(-1) == 1 else x.contiguous()


def _token_major(x_BNSH: Tensor) -> Tensor:
    """The same tensor, in memory as (B, S, N, H): what projections read and write; on a CPU the kernels' own order."""
    return x_BNSH.transpose(1, 2).contiguous().transpose(1, 2)


def _kernel_bias(q: Tensor, slopes: list[float], window: int, documents_BS: Tensor | None) -> Tensor | None:
    """What the kernels have to be told beyond that attention is causal."""
    if not slopes and not window and documents_BS is None:
        return None
    return attention_bias(q.shape[2], slopes, window, q, documents_BS)


def _flash(q: Tensor, k: Tensor, v: Tensor, scale: float, bias: Tensor | None) -> tuple[Tensor, Tensor]:
    aten = torch.ops.aten
    if not q.is_cuda:
        return aten._scaled_dot_product_flash_attention_for_cpu(q, k, v, 0.0, bias is None, attn_mask=bias, scale=scale)
    if bias is None:
        return aten._scaled_dot_product_flash_attention(q, k, v, 0.0, True, False, scale=scale)[:2]
    full = bias.expand(q.shape[0], q.shape[1], -1, -1)
    return aten._scaled_dot_product_efficient_attention(q, k, v, full, True, 0.0, False, scale=scale)[:2]


@torch.library.custom_op("megalith::sdpa", mutates_args=())
def sdpa(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    scale: float,
    slopes: list[float],
    window: int,
    documents_BS: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """forward: fused causal attention of q (B, N, S, H) with k, v (B, K, S, H); returns (y, log-sum-exp of the rows).

    Keeps q, k, v, y and one fp32 number a row; k and v are repeated to N heads, and the bias is built, inside the op.
    y lies in memory as (B, S, N, H), so that the output projection's input is the same bytes.
    """
    group = q.shape[1] // k.shape[1]
    bias = _kernel_bias(q, slopes, window, documents_BS)
    y, lse = _flash(_for_kernel(q), _for_kernel(k, group), _for_kernel(v, group), scale, bias)
    return _token_major(y), lse.contiguous()


@sdpa.register_fake
def _(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    scale: float,
    slopes: list[float],
    window: int,
    documents_BS: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    wide = torch.promote_types(q.dtype, torch.float32)
    B, N, S, H = q.shape
    return q.new_empty(B, S, N, H).transpose(1, 2), q.new_empty((B, N, S), dtype=wide)


@torch.library.custom_op("megalith::sdpa_backward", mutates_args=())
def sdpa_backward(
    dy: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    y: Tensor,
    lse: Tensor,
    documents_BS: Tensor | None,
    scale: float,
    slopes: list[float],
    window: int,
) -> tuple[Tensor, Tensor, Tensor]:
    """backward of `sdpa`: gradients of q, k and v, those of a shared key/value head summed over its query heads."""
    aten, group = torch.ops.aten, q.shape[1] // k.shape[1]
    dy, q, k_N, v_N = _for_kernel(dy), _for_kernel(q), _for_kernel(k, group), _for_kernel(v, group)
    bias = _kernel_bias(q, slopes, window, documents_BS)
    if not q.is_cuda:
        dq, dk, dv = aten._scaled_dot_product_flash_attention_for_cpu_backward(
            dy, q, k_N, v_N, y, lse, 0.0, bias is None, attn_mask=bias, scale=scale
        )
    elif bias is None:
        empty = torch.empty(0, dtype=torch.int64, device=q.device)
        seq_len = q.shape[2]
        dq, dk, dv = aten._scaled_dot_product_flash_attention_backward(
            dy, q, k_N, v_N, y, lse, None, None, seq_len, seq_len, 0.0, True, empty, empty, scale=scale
        )
    else:
        full = bias.expand(q.shape[0], q.shape[1], -1, -1)
        zero = torch.zeros((), dtype=torch.int64, device=q.device)
        dq, dk, dv, _ = aten._scaled_dot_product_efficient_attention_backward(
            dy, q, k_N, v_N, full, y, lse, zero, zero, 0.0, [True, True, True, False], True, scale=scale
        )
    if group > 1:
        dk, dv = (d.unflatten(1, (-1, group)).sum(2) for d in (dk, dv))
    return _token_major(dq), _token_major(dk), _token_major(dv)


@sdpa_backward.register_fake
def _(dy, q, k, v, y, lse, documents_BS, scale, slopes, window):
    return tuple(x.new_empty(x.transpose(1, 2).shape).transpose(1, 2) for x in (q, k, v))


def _keep_sdpa(ctx, inputs, output) -> None:
    q, k, v, *ctx.settings, documents_BS = inputs
    ctx.save_for_backward(q, k, v, *output, documents_BS)
    ctx.mark_non_differentiable(output[1])


def _sdpa_backward(ctx, dy: Tensor, _: Tensor | None):
    return *sdpa_backward(dy, *ctx.saved_tensors, *ctx.settings), None, None, None, None


sdpa.register_autograd(_sdpa_backward, setup_context=_keep_sdpa)


@register_flop_formula(torch.ops.megalith.sdpa)
def _(q_shape, k_shape, v_shape, *args, out_shape=None, **kwargs) -> int:
    return sdpa_flop_count(q_shape, (*q_shape[:2], *k_shape[2:]), (*q_shape[:2], *v_shape[2:]))


@register_flop_formula(torch.ops.megalith.sdpa_backward)
def _(dy_shape, q_shape, k_shape, v_shape, *args, out_shape=None, **kwargs) -> int:
    return sdpa_backward_flop_count(dy_shape, q_shape, (*q_shape[:2], *k_shape[2:]), (*q_shape[:2], *v_shape[2:]))


class CoreAttention(nn.Module):
    """Causal attention without projections. `slopes` holds one ALiBi slope for each query head at hand, or nothing."""

    def __init__(self, config: ModelConfig, site: int) -> None:
        super().__init__()
        self.scale = config.head_width**-0.5
        self.window = config.sliding_window or 0
        self.slopes = list(alibi_slopes(config.num_attention_heads)) if config.position is Position.ALIBI else []
        self.dropout = Dropout(config.attention_dropout, site)

    def forward(self, q_TNH: Tensor, k_TKH: Tensor, v_TKH: Tensor, context: Context) -> Tensor:
        raise NotImplementedError


class UnfusedAttention(CoreAttention):
    """Scores, softmax, dropout and their product with v as separate steps, as in arXiv:2205.05198."""

    def forward(self, q_TNH: Tensor, k_TKH: Tensor, v_TKH: Tensor, context: Context) -> Tensor:
        split, num_kv_heads = (context.batch_size, -1), k_TKH.shape[1]
        q = q_TNH.unflatten(0, split).unflatten(2, (num_kv_heads, -1)).permute(0, 2, 3, 1, 4)  # B K G S H
        k = k_TKH.unflatten(0, split).permute(0, 2, 3, 1)  # B K H S
        v = v_TKH.unflatten(0, split).transpose(1, 2)  # B K S H
        group_seq = q.shape[2:4]
        scores = (q.flatten(2, 3) @ k).unflatten(2, group_seq)
        p = causal_softmax(scores, self.scale, self.slopes, self.window, context.documents_BS)
        p = self.dropout(p, context.seed)
        y = (p.flatten(2, 3) @ v).unflatten(2, group_seq)
        return y.permute(0, 3, 1, 2, 4).reshape(q_TNH.shape[0], -1)


class SdpaAttention(CoreAttention):
    """One fused kernel; it has no dropout, which the validator refuses beforehand."""

    def forward(self, q_TNH: Tensor, k_TKH: Tensor, v_TKH: Tensor, context: Context) -> Tensor:
        q, k, v = (x.unflatten(0, (context.batch_size, -1)).transpose(1, 2) for x in (q_TNH, k_TKH, v_TKH))
        y, _ = sdpa(q, k, v, self.scale, self.slopes, self.window, context.documents_BS)
        return y.transpose(1, 2).reshape(q_TNH.shape[0], -1)


def make_core_attention(config: ModelConfig, attention: Attention, site: int) -> CoreAttention:
    return (UnfusedAttention if attention is Attention.UNFUSED else SdpaAttention)(config, site)
