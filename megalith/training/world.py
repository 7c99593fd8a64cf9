"""Which processes this one runs with, read from what torchrun or Slurm left in the environment; no torch here."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass

from megalith.errors import UserError


@dataclass(frozen=True)
class World:
    """`rank` of `size` processes; `local_rank` counts within the machine. `size` 1 outside any launcher."""

    rank: int = 0
    size: int = 1
    local_rank: int = 0
    master_addr: str = "127.0.0.1"
    master_port: int = 0

    @property
    def launched(self) -> bool:
        """Whether a launcher started the processes, so that they have to find each other."""
        return self.master_port > 0

    def __post_init__(self) -> None:
        """Raises UserError for a rank that the world does not have: the others would wait for it in vain."""
        if self.size and self.rank >= self.size:
            raise UserError(f"RANK={self.rank} must be below WORLD_SIZE={self.size}; the first rank is 0")

    def tell(self, env: MutableMapping[str, str]) -> None:
        """Write it as the variables that torch's `env://` reads; a Slurm step comes without them."""
        env["RANK"], env["WORLD_SIZE"], env["LOCAL_RANK"] = str(self.rank), str(self.size), str(self.local_rank)
        env["MASTER_ADDR"], env["MASTER_PORT"] = self.master_addr, str(self.master_port)


def from_environment(env: Mapping[str, str] | None = None) -> World:
    """The world that torchrun (`WORLD_SIZE`, `RANK`) or a Slurm step of several tasks set up; else one process.

    Raises UserError where a variable is missing or is not a number.
    """
    env = os.environ if env is None else env
    if "WORLD_SIZE" in env and "RANK" in env:
        return World(
            rank=_number(env, "RANK"),
            size=_number(env, "WORLD_SIZE"),
            local_rank=_number(env, "LOCAL_RANK", default=0),
            master_addr=env.get("MASTER_ADDR", "127.0.0.1"),
            master_port=_number(env, "MASTER_PORT"),
        )
    if "SLURM_PROCID" in env and "SLURM_STEP_ID" in env:
        return _from_slurm(env)
    return World()


def _from_slurm(env: Mapping[str, str]) -> World:
    """A step started by `srun`; a batch script alone has no step and is one process."""
    size_key = "SLURM_STEP_NUM_TASKS" if "SLURM_STEP_NUM_TASKS" in env else "SLURM_NTASKS"
    size = _number(env, size_key, default=1)
    if size == 1:
        return World()
    nodes = env.get("SLURM_STEP_NODELIST") or env.get("SLURM_JOB_NODELIST") or env.get("SLURM_NODELIST", "")
    return World(
        rank=_number(env, "SLURM_PROCID"),
        size=size,
        local_rank=_number(env, "SLURM_LOCALID", default=0),
        master_addr=env.get("MASTER_ADDR") or first_host(nodes),
        master_port=_number(env, "MASTER_PORT", default=15000 + _number(env, "SLURM_JOB_ID", default=0) % 15000),
    )


def first_host(node_list: str) -> str:
    """The first machine of a Slurm node list: `gpu[007-009,12],login` -> `gpu007`."""
    match = re.match(r"([^\[,]*)(?:\[(\d+)[^\]]*\])?([^,]*)", node_list.strip())
    host = "".join(part or "" for part in match.groups()) if match else ""
    if not host:
        raise UserError(f"SLURM node list {node_list!r} names no machine; set MASTER_ADDR to the host of task 0")
    return host


def _number(env: Mapping[str, str], key: str, default: int | None = None) -> int:
    text = env.get(key)
    if text is None:
        if default is None:
            raise UserError(f"environment variable {key} is missing; torchrun and srun set it, or set it to a number")
        return default
    if not text.strip().isdigit():
        raise UserError(f"environment variable {key}={text!r} is not a number from 0 up")
    return int(text)
