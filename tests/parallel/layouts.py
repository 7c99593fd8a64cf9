"""Meshes over the first ranks of a pool, so that one pool serves every layout that fits into it."""

from __future__ import annotations

import torch
from torch.distributed.device_mesh import DeviceMesh

from megalith.config.recipe import Layout, Sharding
from megalith.parallel.mesh import AXES


def mesh_of(layout: Layout, data_parallel_size: int, first: int = 0) -> DeviceMesh | None:
    """The mesh over ranks `first`, `first + 1`, ...; every rank of the world must call, those outside get None."""
    tp = layout.tensor_parallel_size
    replicas = layout.sharding is Sharding.NONE
    shape = (data_parallel_size, 1, tp) if replicas else (1, data_parallel_size, tp)
    ranks = torch.arange(first, first + data_parallel_size * tp).reshape(shape)
    mesh = DeviceMesh("cpu", ranks, mesh_dim_names=AXES)
    return mesh if mesh.get_coordinate() is not None else None
