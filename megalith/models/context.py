"""What every block of one forward needs beside its activations."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from megalith.models.positions import RopeTable


@dataclass(frozen=True)
class Context:
    """`batch_size` sequences lie one after the other in the T rows; `seed` None is no dropout.

    documents_BS: for each token the number of its document, where attention stops at their boundaries.  rope: a row for
    each position, or for each of the T tokens.

    A plain dataclass on purpose: wrappers that cast or move the tensors of a call leave it as it is.
    """

    batch_size: int
    rope: RopeTable | None
    seed: Tensor | None
    documents_BS: Tensor | None = None
