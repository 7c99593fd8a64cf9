"""From a recipe to a running training: processes, device, data, model, optimizer, and the position to continue from."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import HashStore

from megalith.checkpoint import atomic, store
from megalith.checkpoint.folder import Manifest, read_manifest
from megalith.checkpoint.store import Position
from megalith.config.reader import to_tree
from megalith.config.recipe import Precision, Recipe
from megalith.data.blend import Drawn
from megalith.data.loader import MicroBatch, StepLoader, validation_batches
from megalith.data.sources import RunData, describe, epochs_of, open_data, order_changes, validation_prefixes
from megalith.errors import UserError
from megalith.log import say, warn
from megalith.parallel.mesh import data_parallel, make_mesh
from megalith.parallelize.apply import build_model
from megalith.tokens.manifest import check_manifest, common_tokenizer
from megalith.tokens.tokenizer import Tokenizer
from megalith.training.hooks import Hook, Hooks
from megalith.training.loop import Run, train
from megalith.training.metrics import MetricsWriter
from megalith.training.optimizer import build_optimizer
from megalith.training.progress import ProgressDisplay
from megalith.training.step import TrainStep
from megalith.training.world import World, from_environment

TOKENIZER_FILE = "tokenizer.json"


def train_recipe(recipe: Recipe, hooks: Sequence[Hook] = (), display: bool = True) -> None:
    """Train as the recipe says in the processes that there are, continuing from its newest whole checkpoint.

    Under torchrun or a Slurm step every process calls this; otherwise it is one process. Every rank adds `hooks`.
    """
    world = from_environment()
    with process_group(world, mesh_needed=recipe.precision is not Precision.FP32) as device:
        run = build_run(recipe, world, device, hooks, display)
        if run.position.step >= recipe.train_steps:
            say(f"{recipe.output}: all {recipe.train_steps} steps are done; raise train_steps to go on")
            return
        train(run)


@contextmanager
def process_group(world: World, mesh_needed: bool = False) -> Iterator[torch.device]:
    """This process's device, with all processes joined while entered: NCCL on GPUs, gloo on CPUs.

    One process joins nobody, unless a mesh is needed all the same: mixed precision comes with FSDP.
    """
    use_gpu = torch.cuda.is_available()
    device = torch.device("cuda", world.local_rank) if use_gpu else torch.device("cpu")
    if use_gpu:
        torch.cuda.set_device(device)
    if not world.launched and not mesh_needed:
        yield device
        return
    backend, bound = ("nccl", device) if use_gpu else ("gloo", None)
    if world.launched:
        world.tell(os.environ)
        dist.init_process_group(backend, device_id=bound)
    else:
        dist.init_process_group(backend, store=HashStore(), rank=0, world_size=1, device_id=bound)
    try:
        yield device
    finally:
        dist.destroy_process_group()


def build_run(
    recipe: Recipe, world: World, device: torch.device, hooks: Sequence[Hook] = (), display: bool = True
) -> Run:
    """Everything that the loop needs, loaded from the newest whole checkpoint where there is one."""
    torch.manual_seed(recipe.seed)
    mesh = make_mesh(recipe.layout, world.size, device.type) if dist.is_initialized() else None
    output = Path(recipe.output)
    output.mkdir(parents=True, exist_ok=True)
    digest = keep_tokenizer(recipe, output, world)
    data, (rank, size) = open_data(recipe), data_parallel(mesh)
    model = build_model(recipe, mesh, device)
    optimizer = build_optimizer(model, recipe.optimizer)
    own_hooks = [MetricsWriter(output)] + ([ProgressDisplay(recipe.log.interval_steps)] if display else [])
    run = Run(
        recipe=recipe,
        recipe_tree=to_tree(recipe),
        device=device,
        mesh=mesh,
        model=model,
        optimizer=optimizer,
        train_step=TrainStep(recipe, model, optimizer, mesh, device),
        loader=StepLoader(
            data.train,
            recipe.batch,
            rank,
            size,
            recipe.data.num_workers,
            data.boundaries,
            recipe.train_steps * recipe.batch.global_batch_size,
        ),
        validation_sets={name: validation_set(recipe, data, name, rank, size) for name in data.validation},
        hooks=Hooks([*(own_hooks if world.rank == 0 else []), *hooks]),
        tokenizer_digest=digest,
        position=Position(step=0, consumed_samples=0),
    )
    resume(run)
    if display and world.rank == 0:
        for source in epochs_of(recipe, data):
            say(describe(source))
    return run


def keep_tokenizer(recipe: Recipe, output: Path, world: World) -> str | None:
    """Copy the run's tokenizer into its output folder, so that the model opens alone; returns its digest.

    Raises UserError where the token file was made with another tokenizer, or the model has fewer rows than tokens.
    """
    prefixes = list(
        dict.fromkeys([part.prefix for part in recipe.data.sources] + list(validation_prefixes(recipe.data).values()))
    )
    if recipe.data.tokenizer is None:
        return common_tokenizer(prefixes)
    tokenizer = Tokenizer.open(recipe.data.tokenizer)
    for prefix in prefixes:
        check_manifest(prefix, tokenizer)
    if tokenizer.vocab_size > recipe.model.vocab_size:
        raise UserError(
            f"model.vocab_size={recipe.model.vocab_size} has no row for some of the {tokenizer.vocab_size} tokens of "
            f"{recipe.data.tokenizer}; choose model.vocab_size={tokenizer.vocab_size}"
        )
    if world.rank == 0:
        atomic.copy_file(tokenizer.path, output / TOKENIZER_FILE)
    return tokenizer.digest


def validation_set(
    recipe: Recipe, data: RunData, name: str, rank: int, size: int
) -> Callable[[], Iterable[MicroBatch]]:
    """A function that starts over this rank's micro-batches of a validation set."""
    most = recipe.validation.max_batches * recipe.batch.global_batch_size
    choices = (recipe.batch, rank, size, most, data.boundaries)
    return lambda: validation_batches(data.validation[name], *choices)


def resume(run: Run) -> None:
    """Continue from the newest whole checkpoint of the run's output folder, if there is one; every rank calls it.

    Raises UserError where it belongs to another model, optimizer or tokenizer.
    """
    checkpoint, passed_over = store.newest(run.output)
    for fault in passed_over:
        warn(f"checkpoint passed over: {fault}")
    if checkpoint is None:
        return
    check_same_run(checkpoint, read_manifest(checkpoint), run)
    manifest = store.load(checkpoint, run.model, run.optimizer)
    run.loader.seek(manifest.consumed_samples, Drawn(**manifest.sources) if manifest.sources else None)
    run.position = Position(manifest.step, manifest.consumed_samples, manifest.sources)


def check_same_run(checkpoint: Path, manifest: Manifest, run: Run) -> None:
    """Raises UserError where the checkpoint's model, optimizer or tokenizer is not this run's.

    Warns where samples are renumbered.
    """
    way_out = f"choose another output than {run.recipe.output}, or remove its checkpoints"
    stored, wanted = manifest.recipe["model"], run.recipe_tree["model"]
    changed = [f"model.{k}: {stored.get(k)} there, {v} here" for k, v in wanted.items() if stored.get(k) != v]
    if changed:
        raise UserError(f"{checkpoint} holds another model ({'; '.join(changed)}); {way_out}")
    before, now = manifest.recipe["optimizer"]["name"], run.recipe_tree["optimizer"]["name"]
    if before != now:
        raise UserError(f"{checkpoint} holds the state of optimizer.name={before}, not of {now}; {way_out}")
    if manifest.tokenizer_digest != run.tokenizer_digest:
        raise UserError(f"{checkpoint} was trained with another tokenizer than this recipe names; {way_out}")
    for change in order_changes(manifest.recipe, run.recipe_tree):
        warn(f"{change}: from here on samples come in another order, and some may come again")
