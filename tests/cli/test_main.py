"""The door: quick help without torch, verbs imported when chosen, exit codes that tell what happened."""

from __future__ import annotations

import argparse
import errno
import subprocess
import sys
import time
import types

import pytest

from megalith import __version__
from megalith.cli import main as door
from megalith.cli.parser import CommandParser, verb_parser
from megalith.errors import UserError


def test_help_is_quick_and_loads_nothing_heavy() -> None:
    program = (
        "import sys; from megalith.cli.main import main; code = main(['--help']);"
        "print(sorted({'torch', 'numpy', 'yaml', 'rich'} & set(sys.modules))); sys.exit(code)"
    )
    seconds = []
    for _ in range(3):
        started = time.perf_counter()
        ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
        seconds.append(time.perf_counter() - started)
        assert ran.stdout.splitlines()[-1] == "[]"
        assert all(f"  {verb}" in ran.stdout for verb in door.VERBS)
    assert min(seconds) < 0.5


@pytest.mark.parametrize("verb", door.VERBS)
def test_every_verb_listed_is_there_with_help_and_an_example(verb: str, capsys) -> None:
    with pytest.raises(SystemExit) as left:
        door.main([verb, "--help"])
    assert left.value.code == 0
    shown = capsys.readouterr().out
    assert f"usage: megalith {verb}" in shown and f"\n  megalith {verb}" in shown.partition("example:")[2]


def test_python_dash_m_and_version() -> None:
    command = [sys.executable, "-m", "megalith", "--version"]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert ran.stdout.strip() == __version__


def test_no_arguments_is_not_success(capsys) -> None:
    assert door.main([]) == 2
    assert "usage: megalith VERB" in capsys.readouterr().err


def test_unknown_verb_names_the_nearest(capsys) -> None:
    assert door.main(["trian", "x"]) == 2
    assert capsys.readouterr().err == "megalith: `trian` is not a verb of megalith; did you mean `megalith train`?\n"


@pytest.fixture
def verb(monkeypatch):
    """A verb `probe` whose module exists only for the test; returns it, to be given a `run`."""
    module = types.ModuleType("megalith_probe")
    module.__dict__.update(HELP="Probe.", EXAMPLE="megalith probe x", add_arguments=add_arguments, run=lambda args: 0)
    monkeypatch.setitem(sys.modules, "megalith_probe", module)
    monkeypatch.setattr(door, "VERBS", {"probe": ("megalith_probe", "a probe")})
    return module


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("recipe")
    parser.add_argument("overrides", nargs="*")
    parser.add_argument("--nproc", type=int, default=1)


@pytest.mark.parametrize(
    "line",
    ["r.yaml a=1 b=2 --nproc 2", "r.yaml --nproc 2 a=1 b=2", "--nproc 2 r.yaml a=1 b=2", "r.yaml a=1 --nproc 2 b=2"],
)
def test_options_may_stand_anywhere(verb, line: str) -> None:
    seen = []
    verb.run = lambda args: seen.append(args) or 7
    assert door.main(["probe", *line.split()]) == 7
    assert (seen[0].recipe, seen[0].overrides, seen[0].nproc) == ("r.yaml", ["a=1", "b=2"], 2)


def test_abbreviated_flags_are_refused(verb, capsys) -> None:
    with pytest.raises(SystemExit) as left:
        door.main(["probe", "r.yaml", "--np", "2"])
    assert left.value.code == 2
    assert "--np" in capsys.readouterr().err


def raising(error: BaseException):
    def run(args: argparse.Namespace) -> int:
        raise error

    return run


def test_exit_codes(verb, capsys) -> None:
    verb.run = raising(UserError("seed=-1 must be at least 0"))
    assert door.main(["probe", "r"]) == 2
    assert capsys.readouterr().err == "megalith: seed=-1 must be at least 0\n"
    verb.run = raising(OSError(errno.ENOSPC, "No space left on device", "runs/a"))
    assert door.main(["probe", "r"]) == 2
    assert capsys.readouterr().err.startswith("megalith: runs/a: No space left on device; free some space")
    verb.run = raising(KeyboardInterrupt())
    assert door.main(["probe", "r"]) == 130
    verb.run = raising(ZeroDivisionError("a fault of ours"))
    with pytest.raises(ZeroDivisionError):
        door.main(["probe", "r"])


def test_help_of_a_verb_ends_with_its_example(verb, capsys) -> None:
    with pytest.raises(SystemExit) as left:
        door.main(["probe", "--help"])
    assert left.value.code == 0
    assert capsys.readouterr().out.endswith("example:\n  megalith probe x\n")


def test_sub_verbs_follow_the_same_rules() -> None:
    parser = verb_parser("megalith data", "Data.", "megalith data inspect x")
    inner = parser.add_subparsers().add_parser("inspect")
    inner.add_argument("--prefix")
    assert isinstance(inner, CommandParser)
    assert parser.parse_args(["inspect", "--prefix", "x"]).prefix == "x"
    with pytest.raises(SystemExit):
        parser.parse_args(["inspect", "--pre", "x"])


@pytest.mark.parametrize("line", ["--help", "train --help"])
def test_a_reader_that_left_is_no_traceback(line: str) -> None:
    command = [sys.executable, "-m", "megalith", *line.split()]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None and process.stderr is not None
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait(timeout=60) in (0, 141)  # argparse itself is silent where output is not buffered


def test_only_what_is_required_is_asked_for(capsys) -> None:
    with pytest.raises(SystemExit):
        door.main(["train"])
    assert capsys.readouterr().err.endswith("the following arguments are required: RECIPE\n")
