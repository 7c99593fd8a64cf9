"""Which part of a parameter this rank holds."""

from __future__ import annotations

from torch import Tensor, nn
from torch.distributed.tensor import DTensor


def share(parameter: nn.Parameter) -> tuple[Tensor, tuple[range, ...]]:
    """The local tensor of a parameter, plain or DTensor, and the index range of each dimension that it holds.

    Shards are cut along the tensor axis first and each piece along the data axes after it, so the mesh axes are walked
    from the last to the first; each cut is into ceil(n / ranks) rows, of which the last ranks may hold fewer or none.
    """
    ranges = [range(n) for n in parameter.shape]
    if not isinstance(parameter, DTensor):
        return parameter, tuple(ranges)
    mesh, coordinate = parameter.device_mesh, parameter.device_mesh.get_coordinate()
    assert coordinate is not None, "this rank is not on the parameter's mesh"
    for axis in reversed(range(mesh.ndim)):
        placement = parameter.placements[axis]
        if placement.is_replicate():
            continue
        dim = placement.dim  # type: ignore[attr-defined]  # Shard and its strided kind have one
        rows = -(-len(ranges[dim]) // mesh.size(axis))
        ranges[dim] = ranges[dim][rows * coordinate[axis] : rows * (coordinate[axis] + 1)]
    return parameter.to_local(), tuple(ranges)
