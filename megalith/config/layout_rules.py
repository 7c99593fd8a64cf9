"""The rules that tie a recipe to its layout and to the number of processes; each returns its message or None.

`world_size` None: the number of processes is not known, and only what no number of them mends is a fault.
"""

from __future__ import annotations

from collections.abc import Callable
from math import gcd, inf

from megalith.config.partial import judged
from megalith.config.recipe import Recipe
from megalith.config.wording import choice, multiples

LARGEST_SUGGESTED_TENSOR_SIZE = 1024


def _heads_split(recipe: Recipe, world_size: int | None, size: int) -> bool:
    return recipe.model.num_attention_heads % size == 0


def _ffn_splits(recipe: Recipe, world_size: int | None, size: int) -> bool:
    return _ffn_units(recipe) % size == 0


def _vocab_splits(recipe: Recipe, world_size: int | None, size: int) -> bool:
    return _every_rank_has_a_token(recipe.model.vocab_size, size)


def _every_rank_has_a_token(vocab_size: int, size: int) -> bool:
    """Ranks hold ceil(V / t) tokens each, the last fewer: only small vocabularies leave one with none."""
    return vocab_size > (size - 1) * -(-vocab_size // size)


def _world_splits(recipe: Recipe, world_size: int | None, size: int) -> bool:
    return world_size is None or world_size % size == 0


def _ffn_units(recipe: Recipe) -> int:
    """Rows of the first MLP weight that must stay together count as one: gate blocks where there is a gate."""
    return recipe.model.ffn_width // (recipe.model.gate_block if recipe.model.gated else 1)


def _tensor_sizes(recipe: Recipe, world_size: int | None) -> str:
    """The tensor sizes which every rule that can be judged accepts, nearest to the one asked for."""

    def accepted(size: int) -> bool:
        rules = (_heads_split, _ffn_splits, _vocab_splits, _world_splits)
        verdicts = [judged(rule, recipe, world_size, size) for rule in rules]
        return False not in verdicts

    sizes = filter(accepted, range(1, LARGEST_SUGGESTED_TENSOR_SIZE + 1))
    return choice(sizes, recipe.layout.tensor_parallel_size)


def heads_over_tensor_ranks(recipe: Recipe, world_size: int | None) -> str | None:
    heads, size = recipe.model.num_attention_heads, recipe.layout.tensor_parallel_size
    if _heads_split(recipe, world_size, size):
        return None
    return (
        f"num_attention_heads={heads} cannot be split over tensor_parallel_size={size}; "
        f"choose {_tensor_sizes(recipe, world_size)}"
    )


def ffn_over_tensor_ranks(recipe: Recipe, world_size: int | None) -> str | None:
    model, size = recipe.model, recipe.layout.tensor_parallel_size
    if _ffn_splits(recipe, world_size, size):
        return None
    blocks = f" ({_ffn_units(recipe)} blocks of {model.gate_block} gate rows)" if model.gated else ""
    return (
        f"ffn_hidden_size={model.ffn_width}{blocks} cannot be split over tensor_parallel_size={size}; "
        f"choose {_tensor_sizes(recipe, world_size)}"
    )


def vocab_over_tensor_ranks(recipe: Recipe, world_size: int | None) -> str | None:
    vocab_size, size = recipe.model.vocab_size, recipe.layout.tensor_parallel_size
    if _vocab_splits(recipe, world_size, size):
        return None
    held = -(-vocab_size // size)
    return (
        f"vocab_size={vocab_size} leaves a rank without a token at tensor_parallel_size={size}, where each holds "
        f"{held}; choose model.vocab_size={(size - 1) * held + 1} or layout.tensor_parallel_size="
        f"{_tensor_sizes(recipe, world_size)}"
    )


def world_over_tensor_ranks(recipe: Recipe, world_size: int | None) -> str | None:
    size = recipe.layout.tensor_parallel_size
    if world_size is None or _world_splits(recipe, world_size, size):
        return None
    return (
        f"world_size={world_size} is not a multiple of tensor_parallel_size={size}; "
        f"start {multiples(world_size, size)} processes, or choose layout.tensor_parallel_size="
        f"{_tensor_sizes(recipe, world_size)}"
    )


def sequence_parallel_needs_tensor_ranks(recipe: Recipe, world_size: int | None) -> str | None:
    if not recipe.layout.sequence_parallel or recipe.layout.tensor_parallel_size > 1:
        return None
    return (
        "sequence_parallel=true splits tokens over tensor ranks and needs tensor_parallel_size above 1, not "
        f"tensor_parallel_size={recipe.layout.tensor_parallel_size}; choose layout.sequence_parallel=false"
    )


def tokens_over_tensor_ranks(recipe: Recipe, world_size: int | None) -> str | None:
    batch, size = recipe.batch, recipe.layout.tensor_parallel_size
    tokens = batch.micro_batch_size * batch.seq_len
    if not recipe.layout.sequence_parallel or tokens % size == 0:
        return None
    unit = size // gcd(size, batch.micro_batch_size)
    longest = judged(lambda: recipe.model.max_seq_len) or inf
    return (
        f"micro_batch_size={batch.micro_batch_size} x seq_len={batch.seq_len} is {tokens} tokens, which cannot be "
        f"split over tensor_parallel_size={size} with sequence_parallel=true; choose batch.seq_len="
        f"{multiples(batch.seq_len, unit, longest)} or layout.sequence_parallel=false"
    )


def batch_over_data_ranks(recipe: Recipe, world_size: int | None) -> str | None:
    batch = recipe.batch
    ranks = 1
    if world_size is not None and _world_splits(recipe, world_size, recipe.layout.tensor_parallel_size):
        ranks = recipe.layout.data_parallel_size(world_size)
    unit = batch.micro_batch_size * ranks
    if batch.global_batch_size % unit == 0:
        return None
    of_ranks = f" x data_parallel_size={ranks}" if ranks > 1 else ""
    return (
        f"global_batch_size={batch.global_batch_size} is not a multiple of micro_batch_size={batch.micro_batch_size}"
        f"{of_ranks}; choose batch.global_batch_size={multiples(batch.global_batch_size, unit)}"
    )


LAYOUT_RULES: tuple[Callable[[Recipe, int | None], str | None], ...] = (
    heads_over_tensor_ranks,
    ffn_over_tensor_ranks,
    vocab_over_tensor_ranks,
    world_over_tensor_ranks,
    sequence_parallel_needs_tensor_ranks,
    tokens_over_tensor_ranks,
    batch_over_data_ranks,
)
