"""The grid of ranks: which of them share a layer, which hold replicas, which share training state."""

from __future__ import annotations

from torch.distributed import ProcessGroup
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from megalith.config.recipe import Layout, Sharding

AXES = ("dp_replicate", "dp_shard", "tp")


def make_mesh(layout: Layout, world_size: int, device_type: str = "cpu") -> DeviceMesh:
    """The mesh (dp_replicate, dp_shard, tp) over all ranks of the process group; tensor ranks are neighbours."""
    data_parallel_size = layout.data_parallel_size(world_size)
    replicate, shard = (data_parallel_size, 1) if layout.sharding is Sharding.NONE else (1, data_parallel_size)
    return init_device_mesh(device_type, (replicate, shard, layout.tensor_parallel_size), mesh_dim_names=AXES)


def data_parallel(mesh: DeviceMesh | None) -> tuple[int, int]:
    """(rank, size) of this process among the replicas; (0, 1) without a mesh."""
    if mesh is None:
        return 0, 1
    replicate, shard = mesh["dp_replicate"], mesh["dp_shard"]
    return replicate.get_local_rank() * shard.size() + shard.get_local_rank(), replicate.size() * shard.size()


def data_parallel_groups(mesh: DeviceMesh | None) -> list[ProcessGroup]:
    """The groups over which, one after the other, a sum over all replicas is made; those of one rank are left out."""
    axes = ("dp_replicate", "dp_shard") if mesh is not None else ()
    return [mesh[axis].get_group() for axis in axes if mesh is not None and mesh[axis].size() > 1]
