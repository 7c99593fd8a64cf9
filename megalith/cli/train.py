"""`megalith train`: from a recipe to a trained model, in local processes or in those that torchrun or Slurm started."""

from __future__ import annotations

import argparse
import json
import sys

from megalith.config.reader import read_recipe, to_tree, to_yaml
from megalith.config.recipe import Recipe
from megalith.config.validator import notes
from megalith.errors import UserError
from megalith.log import is_first_process, say
from megalith.training.world import from_environment

HELP = (
    "Train as a recipe says. The same command continues a run that was stopped, from its newest checkpoint. "
    "Under torchrun or srun the processes given are used."
)
EXAMPLE = "megalith train recipes/gpt-demo_2m_laptop.yaml train_steps=20 --nproc 2"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("recipe", metavar="RECIPE", help="YAML file that describes the run")
    parser.add_argument(
        "overrides", metavar="key=value", nargs="*", default=[], help="put a value in, such as optimizer.lr=1e-4"
    )
    parser.add_argument(
        "--nproc", type=int, default=1, metavar="N", help="processes to start on this machine (default 1)"
    )
    parser.add_argument("--print", action="store_true", dest="print_tree", help="print the resolved recipe and leave")
    parser.add_argument("--dry-run", action="store_true", help="print parameters and memory per rank and leave")
    parser.add_argument("--json", action="store_true", help="print --print and --dry-run as JSON")


def run(args: argparse.Namespace) -> int:
    """Check everything without torch, then do what is asked. Raises UserError with every fault of the recipe."""
    world = from_environment()
    if args.nproc < 1:
        raise UserError(f"--nproc {args.nproc}: at least one process is needed; choose 1")
    if world.launched and args.nproc not in (1, world.size):
        raise UserError(f"--nproc {args.nproc}, but the launcher started {world.size} processes; leave --nproc out")
    world_size = world.size if world.launched else args.nproc
    recipe = read_recipe(args.recipe, args.overrides, world_size)
    if args.print_tree:
        print(json.dumps(to_tree(recipe), indent=2) if args.json else to_yaml(recipe), end="\n" if args.json else "")
        return 0
    if is_first_process() and world.rank == 0:
        for note in notes(recipe):
            print(f"note: {note}", file=sys.stderr)
    if args.dry_run:
        return dry_run(recipe, world_size, args.json)
    if world.launched or args.nproc == 1:
        return train(recipe)
    return train_here(recipe, args)


def train_here(recipe: Recipe, args: argparse.Namespace) -> int:
    """Start `--nproc` processes on this machine, each of which runs `worker`."""
    from megalith.launch.local import start

    say(f"training {recipe.output} in {args.nproc} processes")
    return start("megalith.cli.train:worker", [args.recipe, *args.overrides], args.nproc)


def worker(arguments: list[str]) -> int:
    """What each started process does: RECIPE key=value ..."""
    world = from_environment()
    return train(read_recipe(arguments[0], arguments[1:], world.size))


def train(recipe: Recipe) -> int:
    """Train in this process; 0 when all steps are done, 128 + the signal's number where one ended it."""
    from megalith.training.build import train_recipe
    from megalith.training.interruption import Interrupted

    try:
        train_recipe(recipe)
    except Interrupted as interrupted:
        say(f"stopped by {interrupted}")
        return 128 + interrupted.signum
    return 0


def dry_run(recipe: Recipe, world_size: int, as_json: bool) -> int:
    """Print parameters and memory per rank, from the very layers that would train, without starting a process."""
    from megalith.tracing.account import account

    memory = account(recipe, world_size)
    print(json.dumps(memory.as_tree(), indent=2) if as_json else memory)
    return 0
