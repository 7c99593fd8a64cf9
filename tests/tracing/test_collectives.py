"""The collectives that a trace reports are those that real processes make: kind, bytes, group and direction."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch.distributed as dist
from torch.distributed import ProcessGroup

from megalith.config.model import Attention
from megalith.config.presets import PRESETS, model_preset
from megalith.config.recipe import Recipe
from megalith.parallel.costs import CollectiveKind
from megalith.tracing.trace import Part, trace
from tests.distributed.pool import WorkerPool
from tests.tracing.cases import FULL, NONE, RECOMPUTE, measured, recipe

Calls = list[tuple[str, int, int]]  # kind, bytes of the whole tensor, ranks
WHOLE = {  # method of a process group that every call ends in -> kind, the argument that is the whole tensor
    "allreduce": (CollectiveKind.ALL_REDUCE, 0),
    "all_gather_single": (CollectiveKind.ALL_GATHER, 0),
    "_allgather_base": (CollectiveKind.ALL_GATHER, 0),  # its name before torch 2.13, as the next one's
    "reduce_scatter_single": (CollectiveKind.REDUCE_SCATTER, 1),
    "_reduce_scatter_base": (CollectiveKind.REDUCE_SCATTER, 1),
}
WORDS = ("gather", "reduce", "scatter", "all", "broadcast", "send", "recv")
METHODS = [name for name in vars(ProcessGroup) if any(word in name for word in WORDS) and not name.startswith("__")]


@contextmanager
def watched(calls: Calls) -> Iterator[None]:
    """Every collective that this process starts, by any way, goes on the list."""
    originals = {name: vars(ProcessGroup)[name] for name in METHODS}

    def watcher(name: str):
        original = getattr(ProcessGroup, name)

        def call(group, *args, **kwargs):
            kind, whole = WHOLE.get(name, (name, 0))
            tensor = args[whole][0] if isinstance(args[whole], list) else args[whole]
            calls.append((str(kind), tensor.nbytes, group.size()))
            return original(group, *args, **kwargs)

        return call

    for name in originals:
        setattr(ProcessGroup, name, watcher(name))
    try:
        yield
    finally:
        for name, original in originals.items():
            setattr(ProcessGroup, name, original)


def made_and_told(case: Recipe, part: Part) -> tuple[Calls, Calls]:
    """(what this worker sent, what the table says that it sent)."""
    made: Calls = []
    measured(case, part)  # groups of the mesh are made before we watch
    with watched(made):
        cost = measured(case, part)
    told = cost.forward.collectives + cost.backward.collectives
    return made, [(str(c.kind), c.num_bytes, dist.get_world_size()) for c in told]


@pytest.mark.parametrize("sequence_parallel", [False, True])
@pytest.mark.parametrize("part", Part)
def test_table_equals_the_calls_made(part: Part, sequence_parallel: bool, two_workers: WorkerPool) -> None:
    families = ("gpt-tiny", "llama-tiny") if part is Part.LAYER else ("gpt-tiny",)
    for family in families:
        for choice in RECOMPUTE.values() if part is Part.LAYER else (NONE,):
            for made, told in two_workers.run(made_and_told, recipe(family, 2, 32, 2, sequence_parallel, choice), part):
                assert told
                assert Counter(made) == Counter(told)


def kinds(case: Recipe, part: Part = Part.LAYER) -> tuple[list[str], list[str]]:
    cost = trace(case, part)
    assert {c.group for c in cost.forward.collectives + cost.backward.collectives} <= {"tp"}
    return [str(c.kind) for c in cost.forward.collectives], [str(c.kind) for c in cost.backward.collectives]


def test_tensor_parallel_layer_all_reduces_twice_each_way() -> None:
    """The f and g of arXiv:1909.08053."""
    assert kinds(recipe("gpt3-175b", 1, 2048, 8)) == (["all_reduce"] * 2, ["all_reduce"] * 2)


def test_sequence_parallel_layer_gathers_its_inputs_once_more_in_backward() -> None:
    """arXiv:2205.05198, section 4.2.2: four of each in both passes, and the gather that storing the shard costs."""
    forward, backward = kinds(recipe("gpt3-175b", 1, 2048, 8, True))
    assert forward == ["all_gather", "reduce_scatter"] * 2
    assert Counter(backward) == Counter({"all_gather": 4, "reduce_scatter": 2})


def test_full_recomputation_sends_the_forward_again() -> None:
    forward, plain = kinds(recipe("gpt3-175b", 1, 2048, 8, True))
    _, again = kinds(recipe("gpt3-175b", 1, 2048, 8, True, FULL))
    assert Counter(again) - Counter(plain) <= Counter(forward)
    assert len(again) > len(plain)


def test_bytes_of_a_layer() -> None:
    """2104.04473, section 3.2: four all-reduces of b s h elements, which rings make 8 b s h (t-1)/t."""
    cost = trace(recipe("gpt3-175b", 1, 2048, 8), Part.LAYER)
    h = PRESETS["gpt3-175b"].hidden_size
    assert [c.num_bytes for c in cost.forward.collectives + cost.backward.collectives] == [2048 * h * 2] * 4


def test_norm_gradients_are_summed_over_tensor_ranks_only_where_tokens_are_sharded() -> None:
    plain = trace(recipe("gpt3-22b", 1, 2048, 8), Part.LAYER)
    sharded = trace(recipe("gpt3-22b", 1, 2048, 8, True), Part.LAYER)
    h = PRESETS["gpt3-22b"].hidden_size
    assert plain.sums == ()
    assert [total.num_bytes for total in sharded.sums] == [2 * h] * 6  # two norms' weights and biases, two row biases


def test_replicated_key_value_heads_sum_their_gradients() -> None:
    """Eight key/value heads over sixteen ranks: each rank computes one, its weight gradient is a part of the sum."""
    config = model_preset("llama-3.1-8b")
    cost = trace(recipe(config, 1, 2048, 16, attention=Attention.SDPA), Part.LAYER)
    assert [total.num_bytes for total in cost.sums] == [2 * 8 * 2 * 128 * config.hidden_size]
