"""The decoder: one model for GPT-3, BLOOM and Llama and what lies between, on one device.

# B sequences  S positions  T = B * S tokens, batch first  D hidden  V vocabulary
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from megalith.config.model import Attention, ModelConfig, Position
from megalith.models.attention import SelfAttention
from megalith.models.context import Context
from megalith.models.dropout import Dropout
from megalith.models.loss import CrossEntropy
from megalith.models.mlp import make_mlp
from megalith.models.norm import make_norm
from megalith.models.positions import RopeTable, positions_in_documents, rope_table

SITES_PER_BLOCK = 3  # core attention, after attention, after the MLP; site 0 is the embedding's


class Embedding(nn.Module):
    """Token vectors, with learned positions (GPT-3) and a norm (BLOOM) where the config has them."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        learned = config.position is Position.LEARNED
        self.token = nn.Embedding(config.vocab_size, config.hidden_size)
        self.position = nn.Embedding(config.max_seq_len, config.hidden_size) if learned else None
        self.norm = make_norm(config) if config.embedding_norm else nn.Identity()
        self.dropout = Dropout(config.dropout, site=0)

    def forward(self, tokens_BS: Tensor, seed: Tensor | None, positions_BS: Tensor | None = None) -> Tensor:
        x_TD = self.token(tokens_BS.flatten())
        if self.position is not None:
            if positions_BS is None:
                positions_BS = torch.arange(tokens_BS.shape[1], device=tokens_BS.device).expand_as(tokens_BS)
            x_TD = x_TD + self.position(positions_BS.flatten())
        return self.dropout(self.norm(x_TD), seed)


class Block(nn.Module):
    """One transformer layer: attention and MLP, each on the normed residual stream, in turn or side by side."""

    def __init__(self, config: ModelConfig, attention: Attention, layer: int) -> None:
        super().__init__()
        site = 1 + SITES_PER_BLOCK * layer
        self.parallel_residual = config.parallel_residual
        self.attention_norm = make_norm(config)
        self.attention = SelfAttention(config, attention, site)
        self.attention_dropout = Dropout(config.dropout, site + 1)
        self.mlp_norm = make_norm(config)
        self.mlp = make_mlp(config)
        self.mlp_dropout = Dropout(config.dropout, site + 2)

    def forward(self, x_TD: Tensor, context: Context) -> Tensor:
        attended_TD = x_TD + self.attention_dropout(self.attention(self.attention_norm(x_TD), context), context.seed)
        mlp_input_TD = x_TD if self.parallel_residual else attended_TD
        return attended_TD + self.mlp_dropout(self.mlp(self.mlp_norm(mlp_input_TD)), context.seed)


class Decoder(nn.Module):
    """Tokens in; logits out, or the summed loss where targets are given."""

    def __init__(self, config: ModelConfig, attention: Attention = Attention.SDPA) -> None:
        super().__init__()
        self.config = config
        self.embedding = Embedding(config)
        self.blocks = nn.ModuleList(Block(config, attention, layer) for layer in range(config.num_layers))
        self.final_norm = make_norm(config)
        self.head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        self.loss = CrossEntropy()
        self.tie()

    def tie(self) -> None:
        """Where the config ties them, let the head use the embedding's weight; again after replacing parameters."""
        if self.config.tied_embeddings:
            self.head.weight = self.embedding.token.weight

    def forward(
        self,
        tokens_BS: Tensor,
        targets_BS: Tensor | None = None,
        loss_mask_BS: Tensor | None = None,
        seed: Tensor | None = None,
        documents_BS: Tensor | None = None,
    ) -> Tensor:
        """Logits (T, V) without targets; else the sum of the losses where the mask is True, 0-d, fp32 at least.

        `seed` (0-d int64, CPU) draws this micro-batch's dropout masks; None is no dropout. `documents_BS` (int64): the
        number of each token's document; positions begin anew in each, and none sees another. None is one a row.
        """
        seq_len = tokens_BS.shape[1]
        rope = rope_table(self.config, seq_len, tokens_BS.device) if self.config.position is Position.ROPE else None
        positions_BS = None if documents_BS is None else positions_in_documents(documents_BS)
        if rope is not None and positions_BS is not None:
            rope = RopeTable(*(table_SR[positions_BS.flatten()] for table_SR in rope))
        context = Context(tokens_BS.shape[0], rope, seed, documents_BS)
        x_TD = self.run_blocks(self.embedding(tokens_BS, seed, positions_BS), context)
        return self.score(x_TD, targets_BS, loss_mask_BS)

    def score(self, x_TD: Tensor, targets_BS: Tensor | None = None, loss_mask_BS: Tensor | None = None) -> Tensor:
        """From what the last block gives to what `forward` gives."""
        logits_TV = self.head(self.final_norm(x_TD))
        if targets_BS is None:
            return logits_TV
        losses_T = self.loss(logits_TV, targets_BS.flatten())
        return losses_T.sum() if loss_mask_BS is None else (losses_T * loss_mask_BS.flatten()).sum()

    def run_blocks(self, x_TD: Tensor, context: Context) -> Tensor:
        """All blocks in order; full recomputation in chunks replaces this from outside."""
        for block in self.blocks:
            x_TD = block(x_TD, context)
        return x_TD
