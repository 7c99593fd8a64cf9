"""Choose the next token from its logits: greedy, or by temperature, top-k and top-p.

# V vocabulary
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from megalith.errors import UserError


@dataclass(frozen=True)
class Sampling:
    """How to choose. `temperature` 0 takes the most likely token; `top_k` 0 and `top_p` 1 leave all tokens in."""

    temperature: float = 0.8
    top_k: int = 50
    top_p: float = 1.0
    seed: int = 1

    def __post_init__(self) -> None:
        """Raises UserError naming every value that is out of range."""
        faults = []
        if not 0 <= self.temperature < float("inf"):
            faults.append(f"temperature={self.temperature} must be a number from 0 (greedy) up; choose 0.8")
        if self.top_k < 0:
            faults.append(f"top_k={self.top_k} must be at least 0 (0 keeps all tokens); choose 50")
        if not 0 < self.top_p <= 1:
            faults.append(f"top_p={self.top_p} must be above 0 and at most 1 (1 keeps all tokens); choose 0.9")
        if not 0 <= self.seed < 2**63:
            faults.append(f"seed={self.seed} must be at least 0 and below 2^63; choose 1")
        if faults:
            raise UserError("\n".join(faults))


def choose(logits_V: Tensor, sampling: Sampling, generator: torch.Generator) -> int:
    """The id of the next token. Temperature 0 and top-k 1 are the argmax, the lowest id among equals, for any seed.

    Temperature divides first, then top-k, then top-p (arXiv:1904.09751) over what is left. Raises UserError where a
    logit is NaN or infinite: the weights are broken, and any token would be made up.
    """
    if not torch.isfinite(logits_V).all():
        raise UserError("the model's logits are not finite: its weights are broken; open an earlier checkpoint")
    if sampling.temperature == 0 or sampling.top_k == 1:
        return int((logits_V == logits_V.max()).nonzero()[0].item())
    # in double and from the largest down: a tiny temperature gives -inf beside 0, not nan
    scaled_V = ((logits_V - logits_V.max()).double() / sampling.temperature).float()
    ordered_V, ids_V = torch.sort(scaled_V, descending=True, stable=True)
    if sampling.top_k:
        ordered_V = ordered_V[: sampling.top_k]
    probabilities_V = torch.softmax(ordered_V, dim=0)
    if sampling.top_p < 1:
        before_V = probabilities_V.cumsum(0) - probabilities_V
        left_out_V = before_V >= sampling.top_p
        left_out_V[0] = False  # the likeliest stays, however small top_p is
        probabilities_V = probabilities_V.masked_fill(left_out_V, 0.0)
    return int(ids_V[torch.multinomial(probabilities_V, 1, generator=generator)].item())
