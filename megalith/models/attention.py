"""Self-attention of one block: two projections in, core attention, one projection out.

# T tokens  D hidden  N query heads  K key/value heads  H head width
"""

from __future__ import annotations

from torch import Tensor, nn

from megalith.config.model import Attention, ModelConfig
from megalith.models.context import Context
from megalith.models.core_attention import make_core_attention
from megalith.models.norm import make_norm
from megalith.models.positions import rotate


class QueryKeyValue(nn.Module):
    """The projections that share one input. `key_value` rows: for each head its key rows, then its value rows."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        D, H = config.hidden_size, config.head_width
        self.query = nn.Linear(D, config.num_attention_heads * H, bias=config.has_qkv_bias)
        self.key_value = nn.Linear(D, config.kv_heads * 2 * H, bias=config.has_qkv_bias)

    def forward(self, x_TD: Tensor) -> tuple[Tensor, Tensor]:
        """(T, N*H) queries and (T, K*2*H) keys and values."""
        return self.query(x_TD), self.key_value(x_TD)


class SelfAttention(nn.Module):
    """Causal self-attention over the sequences of a micro-batch."""

    def __init__(self, config: ModelConfig, attention: Attention, site: int) -> None:
        super().__init__()
        self.head_width = config.head_width
        self.qkv = QueryKeyValue(config)
        self.query_norm = make_norm(config, config.head_width) if config.qk_norm else nn.Identity()
        self.key_norm = make_norm(config, config.head_width) if config.qk_norm else nn.Identity()
        self.core = make_core_attention(config, attention, site)
        self.output = nn.Linear(config.num_attention_heads * config.head_width, config.hidden_size, config.linear_bias)

    def forward(self, x_TD: Tensor, context: Context) -> Tensor:
        query, key_value = self.qkv(x_TD)
        q_TNH = self.query_norm(query.unflatten(-1, (-1, self.head_width)))
        k_TKH, v_TKH = key_value.unflatten(-1, (-1, 2, self.head_width)).unbind(-2)
        k_TKH = self.key_norm(k_TKH)
        if context.rope is not None:
            q_TNH, k_TKH = rotate(q_TNH, *context.rope), rotate(k_TKH, *context.rope)
            if isinstance(self.key_norm, nn.Identity):
                v_TKH = v_TKH.clone()  # as a view it would keep the keys before rotation until backward
        return self.output(self.core(q_TNH, k_TKH, v_TKH, context))
