"""The global norm of the gradients over every mesh axis, and clipping by it."""

from __future__ import annotations

from collections.abc import Iterable
from math import prod

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor


def clip_grad_norm(parameters: Iterable[nn.Parameter], limit: float, mesh: DeviceMesh | None) -> float:
    """The 2-norm of all gradients as if gathered; above `limit` (0: no limit) they are scaled down to it, in place.

    A gradient held whole by several ranks counts once: its square is divided by the number of copies that placements
    declare. Raises RuntimeError where a gradient declares none though there is a mesh.
    """
    gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
    locals_ = [g.to_local() if isinstance(g, DTensor) else g for g in gradients]
    norm = _global_norm(gradients, locals_, mesh)
    if locals_ and 0 < limit < norm:
        torch._foreach_mul_(locals_, limit / norm)  # type: ignore[attr-defined]
    return norm


def _global_norm(gradients: list[Tensor], locals_: list[Tensor], mesh: DeviceMesh | None) -> float:
    total = torch.zeros((), dtype=torch.float64, device=locals_[0].device if locals_ else None)
    if locals_:
        squares = torch.stack(torch._foreach_norm(locals_)).double().square()  # type: ignore[attr-defined]
        total += (squares / squares.new_tensor([_copies(gradient, mesh) for gradient in gradients])).sum()
    for group in mesh.get_all_groups() if mesh is not None and mesh.size() > 1 else ():
        dist.all_reduce(total, group=group)
    return total.sqrt().item()


def _copies(gradient: Tensor, mesh: DeviceMesh | None) -> int:
    """How many ranks of the mesh hold each element of this gradient."""
    if mesh is None:
        return 1
    if not isinstance(gradient, DTensor):
        raise RuntimeError(f"a gradient of shape {tuple(gradient.shape)} declares no placement on the mesh")
    replicated = (gradient.device_mesh.size(i) for i, p in enumerate(gradient.placements) if p.is_replicate())
    return prod(replicated) * (mesh.size() // gradient.device_mesh.size())
