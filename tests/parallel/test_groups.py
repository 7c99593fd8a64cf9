"""Nothing reads the default group: two models on disjoint ranks of one world train as if each were alone."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

import megalith
from tests.distributed.parity import Case, differences, run_steps
from tests.parallel.layouts import mesh_of

ROOT = Path(megalith.__file__).parent
# Calls of torch.distributed that act on the default group unless they are given one.
COLLECTIVES = (
    "all_",
    "reduce",
    "broadcast",
    "gather",
    "scatter",
    "send",
    "recv",
    "isend",
    "irecv",
    "barrier",
    "batch_",
)
ASK_DEFAULT = {"get_rank", "get_world_size", "get_backend", "get_process_group_ranks", "_get_default_group"}


def distributed_names(tree: ast.Module) -> tuple[set[str], set[str]]:
    """(names under which torch.distributed stands in a file, names of its functions and of what is taken from it)."""
    modules, functions = set(), set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            modules |= {a.asname or a.name for a in node.names if a.name == "torch.distributed"}
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("torch.distributed"):
            functions |= {a.asname or a.name for a in node.names}
        elif isinstance(node, ast.Assign) and "dist." in ast.unparse(node.value):
            functions |= {target.id for target in node.targets if isinstance(target, ast.Name)}
    return modules, functions


def default_group_uses(source: str) -> Iterator[str]:
    tree = ast.parse(source)
    modules, functions = distributed_names(tree)
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and ast.unparse(node) in {f"{m}.group.WORLD" for m in modules}:
            yield f"line {node.lineno}: {ast.unparse(node)}"
        if not isinstance(node, ast.Call):
            continue
        owner, _, name = ast.unparse(node.func).rpartition(".")
        if owner not in modules and not (owner == "" and name in functions):
            continue
        given = node.args or [keyword for keyword in node.keywords if keyword.arg == "group"]
        asks = name in ASK_DEFAULT and not given
        acts = name.lstrip("_").startswith(COLLECTIVES) and not any(k.arg == "group" for k in node.keywords)
        if asks or acts:
            yield f"line {node.lineno}: {ast.unparse(node)}"


@pytest.mark.parametrize("folder", ["models", "parallel", "parallelize"])
def test_no_module_uses_the_default_group(folder: str) -> None:
    files = sorted((ROOT / folder).rglob("*.py"))
    assert len(files) > 3
    assert {str(file): found for file in files if (found := list(default_group_uses(file.read_text())))} == {}


@pytest.mark.parametrize(
    "line",
    [
        "dist.all_reduce(x)",
        "dist.get_rank()",
        "dist.barrier()",
        "dist.all_reduce(x, group=dist.group.WORLD)",
        "_resolve(x)\n_gather = dist.all_gather_single\n_gather(y, x)",
        "from torch.distributed import get_world_size\nget_world_size()",
    ],
)
def test_the_lint_sees(line: str) -> None:
    assert len(list(default_group_uses(f"import torch.distributed as dist\n{line}"))) == 1


def test_the_lint_leaves_alone() -> None:
    good = "import torch.distributed as dist\ndist.all_reduce(x, group=g)\ndist.get_rank(g)\ndist.init_process_group()"
    assert list(default_group_uses(good)) == []


FIRST = Case(tp=2, sp=True, kv_heads=1, optimizer="sgd", dropout=0.0)
SECOND = Case(tp=2, family="llama", kv_heads=2, recompute="core_attn")


def beside_each_other() -> tuple[float, set[str]]:
    """The first model on ranks 0 and 1, the second on 2 and 3, at the same time; each against one process."""
    meshes = [mesh_of(case.recipe().layout, 1, first) for case, first in ((FIRST, 0), (SECOND, 2))]
    case, mesh = next((c, m) for c, m in zip((FIRST, SECOND), meshes, strict=True) if m is not None)
    trace = run_steps(case.recipe(), 1, mesh, torch.float64)
    verdict = differences(trace, run_steps(case.recipe(), 1, None, torch.float64))
    dist.barrier()
    return verdict.difference, verdict.parted


def test_two_models_in_one_world(pool) -> None:
    for difference, parted in pool(4).run(beside_each_other):
        assert parted == set()
        assert difference < 1e-9
