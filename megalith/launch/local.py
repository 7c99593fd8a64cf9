"""Start the processes of a run on this machine through torch's own elastic launcher, and end with the truth about them.

The caller validates first: torch is imported only when processes are about to start.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
import tempfile
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from megalith.launch.worker import LAUNCHER_PID, USER_ERROR

if TYPE_CHECKING:
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError, ProcessFailure

SAVE_SECONDS = 600  # what ranks get to save after Ctrl-C or SIGTERM before they are killed
NOTICED_WITHIN_SECONDS = 5.0  # the launcher looks at its processes every 0.1 s, gloo peers notice a death within it


def threads_per_process(num_processes: int) -> int:
    """CPU threads that each process computes with: the cores this process may use, shared out, at least 1."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, cores // num_processes)


def start(target: str, arguments: Sequence[str], num_processes: int) -> int:
    """Run `module:function` with `arguments` in `num_processes` processes of one process group over the loopback.

    Returns 0 where all ranks ended with 0, else the first failing rank's exit code (1 where a signal killed it), after
    printing its traceback as the last thing. After a signal to the launcher: 128 + its number, once ranks have saved.
    """
    from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    silence_torch_launcher()
    os.environ.setdefault("OMP_NUM_THREADS", str(threads_per_process(num_processes)))
    os.environ[LAUNCHER_PID] = str(os.getpid())
    with tempfile.TemporaryDirectory(prefix="megalith-launch-") as logs:
        config = LaunchConfig(
            min_nodes=1,
            max_nodes=1,
            nproc_per_node=num_processes,
            run_id=f"megalith-{os.getpid()}",
            rdzv_backend="c10d",
            rdzv_endpoint="127.0.0.1:0",
            local_addr="127.0.0.1",
            max_restarts=0,
            logs_specs=DefaultLogsSpecs(log_dir=logs),
            shutdown_timeout=SAVE_SECONDS,
        )
        try:
            elastic_launch(config, sys.executable)("-m", "megalith.launch.worker", target, *arguments)
        except ChildFailedError as error:
            return report_failure(error)
        except SignalException as error:
            return 128 + int(error.sigval)
    return 0


def silence_torch_launcher() -> None:
    """Keep torch's launcher from logging what this module reports; each of its loggers has a level of its own."""
    for name in list(logging.root.manager.loggerDict):
        if name.startswith("torch.distributed.elastic"):
            logging.getLogger(name).setLevel(logging.CRITICAL)


def report_failure(error: ChildFailedError) -> int:
    """Print the other failed ranks in a line each, the first one's traceback last; returns its exit code, or 1.

    What a user can put right comes as in one process, once and without a traceback.
    """
    first_rank = min(error.failures, key=lambda rank: _failed_at(error.failures[rank]))
    first = error.failures[first_rank]
    for rank, failure in sorted(error.failures.items()):
        same = _headline(failure) == _headline(first)
        if rank != first_rank and not same and not _ended_by_launcher(failure):
            print(f"megalith: rank {rank} ended after it: {_headline(failure)}", file=sys.stderr)
    title = "" if first.exitcode == USER_ERROR else f"rank {first_rank} failed first:\n"
    print(f"megalith: {title}{_details(first)}", file=sys.stderr, flush=True)
    return first.exitcode if first.exitcode > 0 else 1


def _failed_at(failure: ProcessFailure) -> float:
    """When a rank failed, in seconds since 1970, to tell the cause from its consequences.

    One that left no error was noticed late: its peers' broken connections may be on record already, so it goes before
    them, unless the launcher itself ended it (SIGTERM): torch's time is in whole seconds, rounded down.
    """
    told = _left_behind(failure).get("extraInfo", {}).get("seconds")
    if told is not None:
        return float(told)
    return float(failure.timestamp) + (1.0 if _ended_by_launcher(failure) else -NOTICED_WITHIN_SECONDS)


def _ended_by_launcher(failure: ProcessFailure) -> bool:
    """Whether a rank went because another had failed, and has nothing to say of its own."""
    return failure.exitcode == -signal.SIGTERM and not _left_behind(failure)


def _left_behind(failure: ProcessFailure) -> dict[str, Any]:
    """What `worker.leave_error` wrote, or an empty mapping."""
    message = failure.error_file_data.get("message")
    return message if isinstance(message, dict) else {}


def _headline(failure: ProcessFailure) -> str:
    lines = str(_left_behind(failure).get("message", "")).splitlines()
    return lines[0] if lines else _how_it_ended(failure.exitcode)


def _details(failure: ProcessFailure) -> str:
    text = _left_behind(failure).get("extraInfo", {}).get("py_callstack")
    return str(text).rstrip() if text else _how_it_ended(failure.exitcode)


def _how_it_ended(exitcode: int) -> str:
    """What is known of a process that left no error: its exit code, or the signal and what often sends it."""
    if exitcode >= 0:
        return f"exit code {exitcode}"
    name = signal.Signals(-exitcode).name
    hint = "; the system may have run out of memory: try a smaller micro_batch_size" if name == "SIGKILL" else ""
    return f"killed by {name}{hint}"
