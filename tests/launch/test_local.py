"""The launcher tells which rank failed first and why, ends everything in time, and never says 0 for a failure."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from torch.distributed.elastic.multiprocessing.errors import ProcessFailure

from megalith.launch.local import _failed_at, threads_per_process
from megalith.launch.worker import run

LIMIT_SECONDS = 60
TARGETS = """
import errno, os, signal, sys, time
from pathlib import Path
from megalith.errors import UserError

def joined():
    global torch, dist
    import torch, torch.distributed as dist
    dist.init_process_group("gloo")
    return dist.get_rank()

def succeed(arguments):
    rank = joined()
    total = torch.tensor(rank + 1)
    dist.all_reduce(total)
    if rank == 0:
        print(f"sum {total.item()} threads {torch.get_num_threads()} arguments {arguments}", flush=True)
    return 0

def fail_in_backward(arguments):
    rank = joined()
    class Broken(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x): return x.clone()
        @staticmethod
        def backward(ctx, grad): raise ValueError("the cause of it all")
    x = torch.ones(3, requires_grad=True)
    if rank == 1:
        Broken.apply(x).sum().backward()
    dist.all_reduce(torch.ones(1))
    return 0

def die(arguments):
    if joined() == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    dist.all_reduce(torch.ones(1))
    return 0

def refuse(arguments):
    raise UserError("choose something else")

def fill_the_disk(arguments):
    raise OSError(errno.ENOSPC, "No space left on device")

def sleep(arguments):
    Path(arguments[0], str(os.getpid())).touch()
    time.sleep(600)
    return 0
"""


@pytest.fixture(scope="module")
def launch(tmp_path_factory):
    """Run a target of TARGETS in two processes from a process of its own."""
    folder = tmp_path_factory.mktemp("targets")
    (folder / "launch_targets.py").write_text(TARGETS)
    env = {k: v for k, v in os.environ.items() if k != "OMP_NUM_THREADS"}
    env["PYTHONPATH"] = os.pathsep.join([str(folder), str(Path(__file__).parents[2])])

    def popen(target: str, *arguments: str) -> subprocess.Popen:
        code = "import sys; from megalith.launch.local import start; sys.exit(start(sys.argv[1], sys.argv[2:], 2))"
        command = [sys.executable, "-c", code, f"launch_targets:{target}", *arguments]
        return subprocess.Popen(command, env=env, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE)

    return popen


def test_ranks_meet_and_share_the_cores(launch):
    stdout, stderr = launch("succeed", "a=1", "b").communicate(timeout=LIMIT_SECONDS)
    assert stdout.strip() == f"sum 3 threads {threads_per_process(2)} arguments ['a=1', 'b']", stderr


def test_a_rank_that_raises_is_named_and_its_traceback_comes_last(launch):
    process, started = launch("fail_in_backward"), time.monotonic()
    _, stderr = process.communicate(timeout=LIMIT_SECONDS)
    assert time.monotonic() - started < 30
    assert process.returncode == 1
    last = stderr[stderr.index("rank 1 failed first") :]
    assert "in backward" in last and stderr.strip().splitlines()[-1] == "ValueError: the cause of it all"


def test_a_rank_that_is_killed_is_named(launch):
    process, started = launch("die"), time.monotonic()
    _, stderr = process.communicate(timeout=LIMIT_SECONDS)
    assert time.monotonic() - started < 30
    assert process.returncode == 1
    assert "rank 1 failed first:\nkilled by SIGKILL" in stderr


def test_what_the_user_can_put_right_comes_once_and_without_a_traceback(launch):
    process = launch("refuse")
    _, stderr = process.communicate(timeout=LIMIT_SECONDS)
    assert process.returncode == 2
    assert stderr == "megalith: choose something else\n"


def test_a_full_disk_comes_without_a_traceback_too(launch):
    process = launch("fill_the_disk")
    _, stderr = process.communicate(timeout=LIMIT_SECONDS)
    assert process.returncode == 2
    assert stderr.startswith("megalith: No space left on device; free some space")


def test_workers_end_when_the_launcher_is_killed(launch, tmp_path):
    process = launch("sleep", str(tmp_path))
    pids = wait_for_pids(tmp_path)
    process.kill()
    process.communicate(timeout=LIMIT_SECONDS)
    deadline = time.monotonic() + 10
    while any(is_running(pid) for pid in pids) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not any(is_running(pid) for pid in pids)


def test_a_signal_reaches_the_workers_and_the_exit_code(launch, tmp_path):
    process = launch("sleep", str(tmp_path))
    pids = wait_for_pids(tmp_path)
    process.terminate()
    _, stderr = process.communicate(timeout=LIMIT_SECONDS)
    assert (process.returncode, stderr) == (128 + 15, "")
    assert not any(is_running(pid) for pid in pids)


def wait_for_pids(folder: Path) -> list[int]:
    deadline = time.monotonic() + LIMIT_SECONDS
    while len(list(folder.iterdir())) < 2:
        assert time.monotonic() < deadline, "the workers did not start"
        time.sleep(0.1)
    return [int(path.name) for path in folder.iterdir()]


def is_running(pid: int) -> bool:
    """Whether the process lives; one that nobody has waited for yet does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_an_unknown_target_is_an_error_not_a_success(capsys, monkeypatch):
    monkeypatch.delenv("TORCHELASTIC_ERROR_FILE", raising=False)
    assert run("megalith.no_such_module:f", []) == 1
    assert "no_such_module" in capsys.readouterr().err


def test_every_process_gets_a_thread():
    assert threads_per_process(10_000) == 1


def test_a_rank_that_the_launcher_ended_is_never_the_first(tmp_path):
    """It has only torch's time, in whole seconds, which may lie before that of the rank which failed."""
    told = tmp_path / "error.json"
    extra = {"py_callstack": "the cause", "timestamp": "100", "seconds": 100.7}
    told.write_text(json.dumps({"message": {"message": "UserError: the cause", "extraInfo": extra}}))
    cause = ProcessFailure(local_rank=0, pid=1, exitcode=2, error_file=str(told))
    ended = ProcessFailure(local_rank=1, pid=2, exitcode=-signal.SIGTERM, error_file="<N/A>")
    ended.timestamp = 100
    assert _failed_at(cause) < _failed_at(ended)
