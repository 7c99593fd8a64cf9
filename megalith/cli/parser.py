"""The argument parser that every verb shares: no abbreviated flags, options before or after positional arguments."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any


class CommandParser(argparse.ArgumentParser):
    """An ArgumentParser whose sub-parsers follow the same rules, since argparse makes them of the parent's class."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        kwargs.setdefault("allow_abbrev", False)
        kwargs.setdefault("formatter_class", argparse.RawDescriptionHelpFormatter)
        super().__init__(*args, **kwargs)

    def parse_args(self, args: Sequence[str] | None = None, namespace: Any = None) -> Any:
        """As argparse, but `train RECIPE --nproc 2 key=value` is understood like `train RECIPE key=value --nproc 2`.

        A parser with sub-verbs hands everything after the sub-verb on, which argparse cannot intermix.
        """
        if any(action.nargs == argparse.PARSER for action in self._actions):
            return super().parse_args(args, namespace)
        return self.parse_intermixed_args(args, namespace)


def verb_parser(prog: str, help_text: str, example: str) -> CommandParser:
    """The parser of one verb: what it is for above, a line to copy below."""
    lines = "\n".join(f"  {line.strip()}" for line in example.strip().splitlines())
    return CommandParser(prog=prog, description=help_text, epilog=f"example:\n{lines}")
