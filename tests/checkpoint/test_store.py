"""Save and load by one plain process: everything bitwise, by name, and nothing from outside executed."""

import os
import pickle
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

from megalith.checkpoint import atomic, folder, store
from megalith.checkpoint.reader import TableReader
from megalith.checkpoint.state import optimizer_state
from megalith.checkpoint.store import Position
from megalith.errors import UserError


class Small(nn.Module):
    """13 layers, so that an order by text would differ from one by number."""

    def __init__(self, seed: int, width: int = 3, layers: int = 13) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(layers))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x)
        return x


def adamw(model: nn.Module, decay_first: bool = True) -> torch.optim.AdamW:
    weights = [p for n, p in model.named_parameters() if n.endswith("weight")]
    biases = [p for n, p in model.named_parameters() if n.endswith("bias")]
    groups = [{"params": weights, "weight_decay": 0.1}, {"params": biases, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups if decay_first else groups[::-1], lr=0.1, fused=True)


def take_steps(model: nn.Module, optimizer: torch.optim.Optimizer, seeds: range) -> None:
    for seed in seeds:
        x = torch.randn(4, 3, generator=torch.Generator().manual_seed(seed))
        model(x).square().sum().backward()
        optimizer.step()
        optimizer.zero_grad()


def saved_run(output, seed: int = 0):
    model = Small(seed)
    optimizer = adamw(model)
    take_steps(model, optimizer, range(3))
    where = store.save(output, model, optimizer, Position(3, 24), {"model": {"size": 3}}, keep=2)
    return where, model, optimizer


def test_a_write_that_the_system_refuses_is_named(tmp_path):
    """In a process of its own that may write no file above 2,000 bytes, the nearest thing to a full disk."""
    program = f"""
import resource, signal
from pathlib import Path
from megalith.checkpoint import store
from tests.checkpoint.test_store import Position, Small, adamw
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (2000, 2000))
model = Small(0)
try:
    store.save(Path({str(tmp_path)!r}), model, adamw(model), Position(1, 8), {{}}, keep=2)
except OSError as error:
    print(type(error).__name__, error.strerror)
"""
    root = Path(__file__).parents[2]
    ran = subprocess.run([sys.executable, "-c", program], cwd=root, capture_output=True, text=True, timeout=120)
    assert ran.stdout == "OSError File too large\n", ran.stderr
    assert folder.newest_whole(tmp_path) == (None, [])


def assert_same_state(one: nn.Module, other: nn.Module, one_optimizer, other_optimizer) -> None:
    for (name, p), (_, q) in zip(one.named_parameters(), other.named_parameters(), strict=True):
        assert torch.equal(p, q), name
    first, second = optimizer_state(one, one_optimizer), optimizer_state(other, other_optimizer)
    assert first.keys() == second.keys() and len(first) == 3 * 26
    for key in first:
        assert first[key].dtype == second[key].dtype and torch.equal(first[key], second[key]), key


@pytest.mark.parametrize("decay_first", [True, False], ids=["same-order", "groups-in-the-other-order"])
def test_round_trip_and_the_next_step_are_bitwise(tmp_path, decay_first):
    where, model, optimizer = saved_run(tmp_path)
    loaded = Small(seed=99)
    loaded_optimizer = adamw(loaded, decay_first)
    manifest = store.load(where, loaded, loaded_optimizer)
    assert (manifest.step, manifest.consumed_samples) == (3, 24)
    assert_same_state(model, loaded, optimizer, loaded_optimizer)
    take_steps(model, optimizer, range(3, 6))
    take_steps(loaded, loaded_optimizer, range(3, 6))
    assert_same_state(model, loaded, optimizer, loaded_optimizer)


def test_sgd_without_momentum_has_no_state_and_loads(tmp_path):
    model = Small(0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    take_steps(model, optimizer, range(2))
    where = store.save(tmp_path, model, optimizer, Position(2, 16), {}, keep=1)
    loaded = Small(1)
    store.load(where, loaded, torch.optim.SGD(loaded.parameters(), lr=0.1))
    assert all(torch.equal(p, q) for p, q in zip(model.parameters(), loaded.parameters(), strict=True))


def test_what_is_on_disk_is_whole_and_latest_points_to_it(tmp_path):
    where, _, _ = saved_run(tmp_path)
    assert folder.faults(where) == []
    assert (tmp_path / "checkpoints" / "latest").read_text() == "step_00000003\n"
    assert {path.name for path in where.iterdir()} == {"manifest.json", ".metadata", "__0_0.distcp"}
    manifest = folder.read_manifest(where)
    assert set(manifest.files) == {".metadata", "__0_0.distcp"}
    assert manifest.versions["torch"] == torch.__version__


def test_saving_again_replaces_and_retention_counts(tmp_path):
    _, model, optimizer = saved_run(tmp_path)
    for step in (3, 9, 10, 11):
        store.save(tmp_path, model, optimizer, Position(step, 8 * step), {}, keep=2)
    assert folder.steps(tmp_path) == [10, 11]


def test_a_model_of_another_shape_is_refused_by_name(tmp_path):
    where, _, _ = saved_run(tmp_path)
    with pytest.raises(UserError, match=r"layers.0.weight: \(3, 3\) in the checkpoint, \(4, 4\) in the model"):
        store.load(where, Small(0, width=4))
    with pytest.raises(UserError, match=r"layers.13.weight: not in the checkpoint"):
        store.load(where, Small(0, layers=14))
    with pytest.raises(UserError, match=r"layers.12.weight: in the checkpoint, but the model has no such parameter"):
        store.load(where, Small(0, layers=12))


def test_metadata_that_asks_for_code_is_refused(tmp_path):
    where, _, _ = saved_run(tmp_path)
    witness = tmp_path / "executed"

    class Evil:
        def __reduce__(self):
            return os.system, (f"touch {witness}",)

    (where / ".metadata").write_bytes(pickle.dumps(Evil()))
    with pytest.raises(UserError, match="system"):
        TableReader(where).read_metadata()
    assert not witness.exists()


def test_metadata_that_is_no_table_is_refused(tmp_path):
    where, _, _ = saved_run(tmp_path)
    (where / ".metadata").write_bytes(pickle.dumps([1, 2, 3]))
    with pytest.raises(UserError, match="not a table"):
        store.load(where, Small(0))


def test_files_are_copied_whole_and_onto_themselves(tmp_path):
    source, target = tmp_path / "a", tmp_path / "b"
    source.write_text("text")
    atomic.copy_file(source, target)
    atomic.copy_file(target, target)
    assert target.read_text() == "text"
