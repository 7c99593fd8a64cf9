"""The door: `megalith VERB ...` finds the verb's module, imports it only then, and turns errors into exit codes."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from difflib import get_close_matches
from importlib import import_module
from types import MappingProxyType

from megalith.cli.parser import verb_parser
from megalith.errors import UserError, user_error

# verb -> module with add_arguments(parser), run(args) -> int, HELP, EXAMPLE; and one line for `megalith --help`
VERBS = MappingProxyType(
    {
        "data": ("megalith.cli.data", "train a tokenizer, turn text into token files, look into them"),
        "train": ("megalith.cli.train", "train a model as a recipe says, on this machine or under torchrun"),
        "generate": ("megalith.cli.generate", "continue a prompt with a trained model"),
        "demo": ("megalith.cli.demo", "real text to a trained model that continues a prompt, in minutes"),
    }
)


def usage() -> str:
    """What `megalith --help` prints."""
    width = max(map(len, VERBS))
    lines = [f"  {verb:<{width}}  {summary}" for verb, (_, summary) in VERBS.items()]
    return "\n".join(
        (
            "usage: megalith VERB [arguments]",
            "       megalith VERB --help    the arguments of a verb and an example",
            "       megalith --version\n",
            "Train language models over many processes.\n",
            "verbs:",
            *lines,
        )
    )


def run_verb(verb: str, rest: Sequence[str]) -> int:
    """Import the verb's module, parse `rest` as its arguments and run it; returns the exit code.

    Raises UserError for an unknown verb, naming the nearest one.
    """
    if verb not in VERBS:
        near = get_close_matches(verb, VERBS, n=1, cutoff=0.5)
        hint = f"did you mean `megalith {near[0]}`?" if near else f"choose {', '.join(VERBS)}"
        raise UserError(f"`{verb}` is not a verb of megalith; {hint}")
    module = import_module(VERBS[verb][0])
    parser = verb_parser(f"megalith {verb}", module.HELP, module.EXAMPLE)
    module.add_arguments(parser)
    return module.run(parser.parse_args(rest))


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line `argv` (this process's own by default).

    Returns 0 on success, 2 for what the user can put right, 130 after Ctrl-C, 141 where nobody reads the output any
    more; any other exception goes on to Python, which prints its traceback and ends with 1.
    """
    try:
        try:
            return answer(list(sys.argv[1:] if argv is None else argv))
        finally:
            sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # what Python flushes at its end goes nowhere
        return 141
    except KeyboardInterrupt:
        print("megalith: interrupted", file=sys.stderr)
        return 130
    except Exception as error:
        known = user_error(error)
        if known is None:
            raise
        print(f"megalith: {known}", file=sys.stderr)
        return 2


def answer(arguments: list[str]) -> int:
    """What the arguments ask for: help, the version, or a verb; returns the exit code."""
    if not arguments:
        print(usage(), file=sys.stderr)
        return 2
    if arguments[0] in ("-h", "--help"):
        print(usage())
        return 0
    if arguments[0] == "--version":
        from megalith import __version__

        print(__version__)
        return 0
    return run_verb(arguments[0], arguments[1:])
