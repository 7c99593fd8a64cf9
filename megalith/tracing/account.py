"""The memory that a recipe takes on a rank, told before anything is started."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from types import MappingProxyType

from megalith.config.recipe import Recipe, Sharding
from megalith.tracing.activations import Activations, activations
from megalith.tracing.state import MAIN_BYTES, Group, has_mesh, layer_and_root, optimizer_bytes
from megalith.tracing.trace import compute_dtype
from megalith.units import format_bytes, format_count


@dataclass(frozen=True)
class MemoryAccount:
    """Bytes on rank 0, which holds the largest shares.

    Not all lie there at once: gradients come as what the forward kept goes. `peak_bytes` is the most at one time. What
    the allocator, the kernels and the libraries take comes on top.
    """

    num_parameters: int
    weights_bytes: int
    gathered_weights_bytes: int
    gradients_bytes: int
    unreduced_gradients_bytes: int
    optimizer_bytes: int
    embedding_bytes: int
    layers_bytes: int
    head_bytes: int
    layer_at_work_bytes: int
    head_at_work_bytes: int
    peak_bytes: int

    def as_tree(self) -> dict[str, int]:
        """For JSON."""
        return asdict(self)

    def __str__(self) -> str:
        width = max(map(len, LABELS.values()))
        rows = [f"{label:<{width}}  {format_bytes(getattr(self, name)):>10}" for name, label in LABELS.items()]
        return "\n".join([f"{format_count(self.num_parameters)} parameters; memory of the fullest rank", *rows])


LABELS = MappingProxyType(
    {
        "weights_bytes": "main weights",
        "gathered_weights_bytes": "weights gathered for compute",
        "gradients_bytes": "gradients",
        "unreduced_gradients_bytes": "gradients not yet reduced",
        "optimizer_bytes": "optimizer",
        "embedding_bytes": "kept by the embedding",
        "layers_bytes": "kept by the layers",
        "head_bytes": "kept by head and loss",
        "layer_at_work_bytes": "at work in a layer",
        "head_at_work_bytes": "at work in head and loss",
        "peak_bytes": "most at one time in a step",
    }
)


def account(recipe: Recipe, world_size: int) -> MemoryAccount:
    """What rank 0 of `world_size` holds. Raises RuntimeError where this process has joined a process group."""
    layer, root = layer_and_root(recipe, world_size)
    step = _Step(recipe, world_size, layer, root, activations(recipe))
    whole, kept = step.state(recipe.model.num_layers), step.activations
    weights_bytes, moments_bytes = whole.shard * MAIN_BYTES, optimizer_bytes(whole, recipe.optimizer)
    return MemoryAccount(
        num_parameters=whole.num_parameters,
        weights_bytes=weights_bytes,
        gathered_weights_bytes=step.gathered(recipe.model.num_layers),
        gradients_bytes=whole.shard * MAIN_BYTES,
        unreduced_gradients_bytes=step.unreduced(recipe.model.num_layers),
        optimizer_bytes=moments_bytes,
        embedding_bytes=kept.embedding,
        layers_bytes=kept.layers,
        head_bytes=kept.head,
        layer_at_work_bytes=kept.layer_at_work + kept.made_again,
        head_at_work_bytes=kept.head_at_work,
        peak_bytes=weights_bytes + moments_bytes + step.peak(),
    )


@dataclass(frozen=True)
class _Step:
    """The last micro-batch's backward, which goes from the head down; `left` layers have not run theirs yet."""

    recipe: Recipe
    world_size: int
    layer: Group
    root: Group
    activations: Activations

    @property
    def meshed(self) -> bool:
        return has_mesh(self.recipe, self.world_size)

    @property
    def full(self) -> bool:
        return self.recipe.layout.sharding is Sharding.FULL

    @property
    def accumulates(self) -> bool:
        ranks = self.recipe.layout.data_parallel_size(self.world_size)
        return self.recipe.batch.num_micro_batches(ranks) > 1

    def state(self, layers: int) -> Group:
        """So many layers and the root."""
        return self.layer * layers + self.root

    def gathered(self, left: int) -> int:
        """Weights in the dtype of compute; with full sharding the layer that runs and the one that comes next."""
        layers = min(left, 2) if self.full else left
        return self.state(layers).gathered * compute_dtype(self.recipe).itemsize if self.meshed else 0

    def unreduced(self, left: int) -> int:
        """Sums of micro-batches, which without full sharding are reduced with the last one."""
        return self.state(left).gathered * MAIN_BYTES if self.meshed and self.accumulates and not self.full else 0

    def gradients(self, left: int) -> int:
        """Reduced so far; all, where each micro-batch adds to them."""
        before = self.accumulates and (self.full or not self.meshed)
        layers = self.recipe.model.num_layers
        return (self.state(layers).shard if before else self.layer.shard * (layers - left)) * MAIN_BYTES

    def at(self, left: int) -> int:
        """With the next layer at work, whose gradients are then reduced through a buffer of fp32."""
        kept = self.activations.embedding + self.activations.layers * left // self.recipe.model.num_layers
        buffer = self.layer.gathered * MAIN_BYTES if self.meshed else 0
        state = self.gathered(left) + self.unreduced(left) + self.gradients(left)
        return state + kept + self.activations.layer_at_work + buffer

    def peak(self) -> int:
        """At the head, the last layer, the first, or the reduction of the root's gradients; between, all is linear."""
        num_layers, kept = self.recipe.model.num_layers, self.activations
        head = self.gathered(num_layers) + self.unreduced(num_layers) + self.gradients(num_layers)
        head += kept.embedding + kept.layers + kept.head + kept.head_at_work
        reducing = self.root.gathered * (compute_dtype(self.recipe).itemsize + MAIN_BYTES) if self.meshed else 0
        end = self.state(num_layers).shard * MAIN_BYTES + reducing
        chunk_begins = max(self.at(num_layers), self.at(kept.chunk)) + kept.made_again
        return max(head, chunk_begins, self.at(1), end)
