"""Hold the floors of the house: imports only go down, torch stays out of the rooms marked so, nothing global changes.

`faults(package)` reads every module with `ast` and is itself tested on small trees that must fail.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from types import MappingProxyType

import pytest

import megalith

PACKAGE = Path(megalith.__file__).parent

# a room stands on exactly one floor and imports from those below it
HOUSE = (
    (-1, "errors files log units"),  # single files that every room may use
    (0, "config schedules report hardware jobs"),
    (1, "tokens models checkpoint"),
    (1.5, "parallel"),  # its norms and its loss are those of models/, split
    (2, "curation data parallelize convert prompts"),
    (3, "tracing opening"),
    (4, "training inference bench scoring"),
    (5, "planning adapt evaluation serving launch"),
    (6, "cli __init__"),
    (7, "__main__"),
)
FLOORS = MappingProxyType({room: floor for floor, rooms in HOUSE for room in rooms.split()})
NO_TORCH = frozenset({room for room, floor in FLOORS.items() if floor <= 0} | {"tokens", "curation"})
NOTHING_DISTRIBUTED = frozenset({"models"})
DISTRIBUTED = ("torch.distributed", "torch._C._distributed_c10d", "megalith.parallel", "megalith.parallelize")
MUTABLE_CALLS = ("list", "dict", "set", "bytearray", "defaultdict", "OrderedDict", "Counter", "deque", "count", "cycle")


def faults(package: Path) -> list[str]:
    """Every breach of the floors in the package at `package`, as `module: what is wrong`."""
    found = []
    for path in sorted(package.rglob("*.py")):
        parts: tuple[str, ...] = path.relative_to(package).with_suffix("").parts
        name = ".".join(parts)
        tree = ast.parse(path.read_text(encoding="utf-8"), filename=str(path))
        room = parts[0]
        if room not in FLOORS:
            found.append(f"{name}: room {room} is on no floor; give it one in tests/test_architecture.py")
            continue
        if len(parts) > 1 and not (path.parent / "__init__.py").exists():
            found.append(f"{name}: its folder has no __init__.py, so it would not be installed")
        for target in imports(tree, parts):
            found += [f"{name}: {fault}" for fault in import_faults(room, target)]
        found += [f"{name}: {fault}" for fault in state_faults(tree)]
    return found


def imports(tree: ast.Module, parts: tuple[str, ...]) -> Iterator[str]:
    """Dotted names that a module imports, also inside functions and by import_module("..."); relative ones resolved."""
    here: tuple[str, ...] = (
        "megalith",
        *parts[:-1],
    )  # the folder of a module, and of an __init__ the folder that it is
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = here[: len(here) - node.level + 1] if node.level else ()
            module = ".".join((*base, *(node.module or "").split("."))).strip(".")
            yield from (f"{module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Call) and called(node) in ("import_module", "__import__"):
            yield from (str(argument.value) for argument in node.args[:1] if isinstance(argument, ast.Constant))


def called(node: ast.Call) -> str:
    """The last part of the name of the function that is called, or nothing."""
    return node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")


def within(name: str, *modules: str) -> bool:
    """Whether the dotted `name` is one of `modules` or lies in one."""
    return any(name == module or name.startswith(module + ".") for module in modules)


def import_faults(room: str, target: str) -> Iterator[str]:
    """What is wrong with `room` importing `target`."""
    if room in NO_TORCH and within(target, "torch"):
        yield f"imports {target}, but {room}/ stays free of torch"
    if room in NOTHING_DISTRIBUTED and within(target, *DISTRIBUTED):
        yield f"imports {target}, but {room}/ knows nothing distributed"
        return
    if not within(target, "megalith") or target == "megalith.__version__":
        return
    other = [*target.split("."), "__init__"][1]
    if other not in FLOORS:
        yield f"imports {target}, whose room is on no floor"
    elif other != room and FLOORS[other] >= FLOORS[room]:
        yield f"imports {target} of floor {FLOORS[other]}; from floor {FLOORS[room]} imports only go down"


def state_faults(tree: ast.Module) -> Iterator[str]:
    """Containers at module level under a name that may change, and functions that rebind or fill module names.

    A table is fine: an ALL_CAPS name, or a dunder such as __all__, that no function of the module alters.
    """
    names: set[str] = set()
    for node in tree.body:
        for name, value in assigned(node):
            names.add(name)
            constant = name.strip("_").isupper() or (name.startswith("__") and name.endswith("__"))
            if is_mutable(value) and not constant:
                yield f"line {node.lineno}: module-level {name} can change; pass it in, or make it an ALL_CAPS table"
    for function in ast.walk(tree):
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
            local = local_names(function)
            for node in ast.walk(function):
                if isinstance(node, ast.Global):
                    yield f"line {node.lineno}: `global {', '.join(node.names)}` changes module state; pass it in"
                elif (name := altered(node)) in names and name not in local:
                    yield f"line {getattr(node, 'lineno', 0)}: {name} of the module is altered in {function.name}()"


def assigned(node: ast.stmt) -> Iterator[tuple[str, ast.expr | None]]:
    """Plain names that a statement assigns, each with its value."""
    if isinstance(node, ast.Assign):
        yield from ((target.id, node.value) for target in node.targets if isinstance(target, ast.Name))
    elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
        yield node.target.id, node.value


def local_names(function: ast.FunctionDef | ast.AsyncFunctionDef) -> set[str]:
    """Names bound inside a function: its arguments and whatever it stores to."""
    arguments = {node.arg for node in ast.walk(function.args) if isinstance(node, ast.arg)}
    stored = {node.id for node in ast.walk(function) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    return arguments | stored


def is_mutable(value: ast.expr | None) -> bool:
    """Whether an expression makes a container that can change later."""
    if isinstance(value, ast.Call):
        return called(value) in MUTABLE_CALLS
    return isinstance(value, ast.List | ast.Dict | ast.Set | ast.ListComp | ast.DictComp | ast.SetComp)


def altered(node: ast.AST) -> str | None:
    """The name whose contents a node changes: `x[...] = `, `del x[...]`, `x.append(...)` and the like."""
    changers = ("append", "extend", "insert", "add", "update", "setdefault", "pop", "popitem", "remove", "clear")
    if isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Store | ast.Del):
        return getattr(node.value, "id", None)
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in changers:
        return getattr(node.func.value, "id", None)
    return None


def test_the_house_stands():
    assert len(list(PACKAGE.rglob("*.py"))) > 50
    assert faults(PACKAGE) == []


@pytest.mark.parametrize(
    ("path", "text", "fault"),
    [
        ("config/a.py", "from megalith.training.loop import train", "imports megalith.training.loop.train of floor 4"),
        ("config/a.py", "def f():\n    import torch.nn as nn", "imports torch.nn, but config/ stays free of torch"),
        ("tokens/a.py", "from torch import Tensor", "tokens/ stays free of torch"),
        ("errors.py", "import torch", "errors/ stays free of torch"),
        ("models/a.py", "from torch import distributed", "models/ knows nothing distributed"),
        ("models/a.py", "def f():\n    import torch.distributed as dist", "models/ knows nothing distributed"),
        ("models/a.py", "from megalith.parallel.mesh import make_mesh", "models/ knows nothing distributed"),
        ("models/a.py", "from megalith.checkpoint import store", "imports only go down"),
        ("models/a.py", "from ..training import step", "imports megalith.training.step of floor 4"),
        ("training/a.py", "from megalith.cli import main", "imports megalith.cli.main of floor 6"),
        ("training/a.py", "from megalith import train", "imports megalith.train"),
        ("training/a.py", "import_module('megalith.cli.main')", "imports megalith.cli.main of floor 6"),
        ("training/a.py", "from megalith.nowhere import x", "whose room is on no floor"),
        ("kitchen.py", "", "room kitchen is on no floor"),
        ("data/a.py", "groups = []", "module-level groups can change"),
        ("data/a.py", "_cache: dict[str, int] = {}", "module-level _cache can change"),
        ("data/a.py", "seen = set()", "module-level seen can change"),
        ("data/a.py", "TABLE = {}\ndef f(k):\n    TABLE[k] = 1", "TABLE of the module is altered in f()"),
        ("data/a.py", "TABLE = []\ndef f(k):\n    TABLE.append(k)", "TABLE of the module is altered in f()"),
        ("data/a.py", "mesh = None\ndef f(m):\n    global mesh\n    mesh = m", "`global mesh` changes module state"),
    ],
)
def test_a_breach_is_found(tmp_path: Path, path: str, text: str, fault: str):
    """The mutations: a house with one breach must not stand."""
    write(tmp_path, path, text)
    found = faults(tmp_path)
    assert len(found) == 1
    assert fault in found[0]


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("training/a.py", "from megalith.models import decoder\nfrom . import b\nfrom .b import c\nimport torch"),
        ("cli/a.py", "from megalith import __version__\nfrom megalith.errors import UserError"),
        ("data/a.py", "PRESETS = {'a': 1}\n__all__ = ['f']\ndef f(x):\n    y = []\n    y.append(x)\n    return y"),
        ("models/a.py", "from megalith.config.model import ModelConfig\nfrom torch import Tensor, nn"),
    ],
)
def test_what_is_allowed_passes(tmp_path: Path, path: str, text: str):
    write(tmp_path, path, text)
    assert faults(tmp_path) == []


def test_a_room_without_init_is_found(tmp_path: Path):
    write(tmp_path, "data/a.py", "")
    (tmp_path / "data" / "__init__.py").unlink()
    assert faults(tmp_path) == ["data.a: its folder has no __init__.py, so it would not be installed"]


def write(package: Path, path: str, text: str) -> None:
    """One module of a small package, with the __init__.py of its folder."""
    file = package / path
    file.parent.mkdir(parents=True, exist_ok=True)
    if file.parent != package:
        (file.parent / "__init__.py").touch()
    file.write_text(text, encoding="utf-8")
