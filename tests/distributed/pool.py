"""Gloo worker processes that stay up for many cases, so that a case costs its work and not its start.

Every call has a wall-clock limit: on reaching it, or on a failure, the stacks of all ranks are printed and the workers
are ended.
"""

from __future__ import annotations

import faulthandler
import multiprocessing
import os
import signal
import sys
import tempfile
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection, wait
from pathlib import Path
from time import monotonic
from typing import Any


def _serve(rank: int, world_size: int, rendezvous: str, pipe: Connection) -> None:
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{rendezvous}", rank=rank, world_size=world_size)
    pipe.send(("ready", None))
    while True:
        try:
            function, arguments = pipe.recv()
            pipe.send(("value", function(*arguments)))
        except BaseException:
            pipe.send(("failure", traceback.format_exc()))


class WorkerPool:
    """`world_size` processes with a gloo group; `run` calls one function on all of them."""

    def __init__(self, world_size: int, start_limit_s: float = 90) -> None:
        self.world_size, self.alive = world_size, True
        self.folder = tempfile.TemporaryDirectory()
        context = multiprocessing.get_context("spawn")
        rendezvous = str(Path(self.folder.name) / "rendezvous")
        self.pipes, self.processes = [], []
        for rank in range(world_size):
            ours, theirs = context.Pipe()
            process = context.Process(target=_serve, args=(rank, world_size, rendezvous, theirs), daemon=True)
            process.start()
            self.pipes.append(ours)
            self.processes.append(process)
        self._collect(start_limit_s)

    def run(self, function: Callable[..., Any], *arguments: Any, limit_s: float = 60) -> list[Any]:
        """`function(*arguments)` on every rank; the values (numpy, no tensors) in rank order.

        Raises RuntimeError on failure or time-out.
        """
        for pipe in self.pipes:
            pipe.send((function, arguments))
        return self._collect(limit_s)

    def _collect(self, limit_s: float) -> list[Any]:
        deadline = monotonic() + limit_s
        values: dict[int, Any] = {}
        while len(values) < self.world_size:
            waiting = {self.pipes[rank]: rank for rank in range(self.world_size) if rank not in values}
            ready = wait(list(waiting), timeout=max(0.0, deadline - monotonic()))
            if not ready:
                self._fail(f"ranks {sorted(waiting.values())} gave no answer within {limit_s} s")
            for pipe in ready:
                rank = waiting[pipe]  # type: ignore[index]
                try:
                    kind, value = pipe.recv()  # type: ignore[union-attr]
                except EOFError:
                    self._fail(f"rank {rank} died")
                if kind == "failure":
                    self._fail(f"rank {rank} failed:\n{value}")
                values[rank] = value
        return [values[rank] for rank in range(self.world_size)]

    def _fail(self, message: str) -> None:
        sys.stderr.flush()
        for process in self.processes:
            if process.is_alive() and process.pid:
                os.kill(process.pid, signal.SIGUSR1)
                process.join(0.2)
        self.close()
        raise RuntimeError(message)

    def close(self) -> None:
        """End the workers."""
        self.alive = False
        for process in self.processes:
            process.kill()
            process.join()
        self.folder.cleanup()
