"""The process that the local launcher starts: arms itself to end with its launcher, then calls `module:function`.

`python -m megalith.launch.worker module:function ARGUMENT ...` calls function(["ARGUMENT", ...]) -> exit code. An error
is left in the file that torch's launcher reads, so that the launcher can print the first failing rank's traceback last.
"""

from __future__ import annotations

import ctypes
import importlib
import json
import os
import signal
import sys
import threading
import time
import traceback
from pathlib import Path

from megalith.errors import UserError, user_error
from megalith.files import atomic_writer

LAUNCHER_PID = "MEGALITH_LAUNCHER_PID"
ERROR_FILE = "TORCHELASTIC_ERROR_FILE"
USER_ERROR = 2  # exit code of what the user can put right, as of the command line itself
_PR_SET_PDEATHSIG = 1


def end_with_launcher(launcher_pid: int) -> None:
    """Kill this process when its launcher is gone: by the kernel on Linux, by a watching thread elsewhere.

    SIGKILL, because a worker that waits in a collective hears nothing gentler; the last checkpoint stays.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    else:
        threading.Thread(target=_watch_parent, args=(launcher_pid,), daemon=True).start()
    if os.getppid() != launcher_pid:
        os._exit(1)


def _watch_parent(launcher_pid: int) -> None:
    while os.getppid() == launcher_pid:
        time.sleep(1.0)
    os._exit(1)


def leave_error(error: BaseException) -> None:
    """Write the error where torch's launcher looks for it, with the time, from which it tells the first failure."""
    path = os.environ.get(ERROR_FILE)
    if not path:
        traceback.print_exception(error)
        return
    text = str(error) if isinstance(error, UserError) else "".join(traceback.format_exception(error))
    extra = {"py_callstack": text, "timestamp": str(int(time.time())), "seconds": time.time()}
    message = {"message": {"message": f"{type(error).__name__}: {error}", "extraInfo": extra}}
    with atomic_writer(Path(path)) as file:  # the launcher may end this process while it writes
        file.write(json.dumps(message).encode())


def run(target: str, arguments: list[str]) -> int:
    """Call the target; returns its exit code, 2 after what the user can put right, 1 after any other error."""
    module, _, function = target.partition(":")
    try:
        return getattr(importlib.import_module(module), function)(arguments)
    except Exception as error:
        known = user_error(error)
        leave_error(known or error)
        return USER_ERROR if known else 1


if __name__ == "__main__":
    if LAUNCHER_PID in os.environ:
        end_with_launcher(int(os.environ[LAUNCHER_PID]))
    code = run(sys.argv[1], sys.argv[2:])
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # without waiting for threads of a process group whose peers are gone
