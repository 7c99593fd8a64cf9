"""Cached indices: built once whoever asks, never a half or a stale one, the same arrays on every machine."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from megalith.data.index_cache import IndexCache
from megalith.data.samples import EpochSamples, GPTSamples, Samples
from megalith.errors import UserError
from megalith.tokens.indexed import IndexedTokens
from megalith.tokens.writer import IndexedWriter

ARRAYS = ("documents", "ends", "shuffle")
ROOT = Path(__file__).parents[2]
PROCESS = """
import sys, time, hashlib
from pathlib import Path
from megalith.data.index_cache import IndexCache
from megalith.data.samples import GPTSamples
from megalith.tokens.indexed import IndexedTokens
cache = IndexCache(Path(sys.argv[2]))
tokens = IndexedTokens(sys.argv[1])
samples = GPTSamples(tokens, range(len(tokens)), 4, 1, 100, cache)
content = b"".join(getattr(samples.index, name).tobytes() for name in ("documents", "ends", "shuffle"))
print(cache.builds, hashlib.sha256(content).hexdigest())
"""


@pytest.fixture
def tokens(tmp_path: Path) -> IndexedTokens:
    return write(tmp_path / "text", [7, 30, 2, 51, 11])


def write(prefix: Path, lengths: list[int]) -> IndexedTokens:
    with IndexedWriter(prefix, np.int32) as writer:
        for length in lengths:
            writer.append(np.arange(length))
    return IndexedTokens(prefix)


def samples_of(samples: Samples, count: int = 60) -> list[list[int]]:
    return [samples[i].tolist() for i in range(count)]


@pytest.mark.parametrize("kind", [EpochSamples, GPTSamples])
def test_what_is_cached_is_what_would_be_built(tmp_path: Path, tokens: IndexedTokens, kind: type) -> None:
    more: dict[str, Any] = {} if kind is EpochSamples else {"num_samples": 70}
    plain = kind(tokens, range(5), 4, 1, **more)
    for builds in (1, 0):
        cache = IndexCache(tmp_path / "cache")
        assert samples_of(kind(tokens, range(5), 4, 1, cache=cache, **more)) == samples_of(plain)
        assert cache.builds == builds


def test_prepared_passes_are_built_ahead(tmp_path: Path, tokens: IndexedTokens) -> None:
    ahead, cache = IndexCache(tmp_path / "cache"), IndexCache(tmp_path / "cache")
    samples = EpochSamples(tokens, range(5), 4, 1, ahead)
    block = samples.epochs_per_block * samples.samples_per_epoch
    samples.prepare(2 * block + 1)
    assert ahead.builds == 3
    later = EpochSamples(tokens, range(5), 4, 1, cache)
    assert later[2 * block].size == later[0].size == 5
    assert cache.builds == 0


def changed_seed(tokens: IndexedTokens, cache: IndexCache) -> Samples:
    return GPTSamples(tokens, range(5), 4, 2, 70, cache)


def changed_seq_len(tokens: IndexedTokens, cache: IndexCache) -> Samples:
    return GPTSamples(tokens, range(5), 5, 1, 70, cache)


def changed_split(tokens: IndexedTokens, cache: IndexCache) -> Samples:
    return GPTSamples(tokens, range(4), 4, 1, 70, cache)


def changed_samples(tokens: IndexedTokens, cache: IndexCache) -> Samples:
    return GPTSamples(tokens, range(5), 4, 1, 71, cache)


def changed_order(tokens: IndexedTokens, cache: IndexCache) -> Samples:
    samples = EpochSamples(tokens, range(5), 4, 1, cache)
    assert samples[0].size
    return samples


def changed_file(tokens: IndexedTokens, cache: IndexCache) -> Samples:
    """Other documents under the old name; as many of them, and as many tokens."""
    return GPTSamples(write(Path(tokens.prefix), [30, 7, 2, 51, 11]), range(5), 4, 1, 70, cache)


def touched_file(tokens: IndexedTokens, cache: IndexCache) -> Samples:
    os.utime(f"{tokens.prefix}.bin", ns=(1, 1))
    return GPTSamples(tokens, range(5), 4, 1, 70, cache)


def nothing_changed(tokens: IndexedTokens, cache: IndexCache) -> Samples:
    return GPTSamples(tokens, range(5), 4, 1, 70, cache)


@pytest.mark.parametrize(
    ("change", "builds"),
    [
        (nothing_changed, 0),
        (changed_seed, 1),
        (changed_seq_len, 1),
        (changed_split, 1),
        (changed_samples, 1),
        (changed_order, 1),
        (changed_file, 1),
        (touched_file, 1),
    ],
)
def test_whatever_the_order_follows_from_is_in_the_key(tmp_path: Path, tokens: IndexedTokens, change, builds) -> None:
    nothing_changed(tokens, IndexCache(tmp_path / "cache"))
    cache = IndexCache(tmp_path / "cache")
    change(tokens, cache)
    assert cache.builds == builds


@pytest.mark.parametrize("damage", ["description.json", "documents.npy", "ends.npy", "shuffle.npy", "cut"])
def test_what_is_incomplete_is_built_again(tmp_path: Path, tokens: IndexedTokens, damage: str) -> None:
    expected = samples_of(nothing_changed(tokens, IndexCache(tmp_path / "cache")))
    (place,) = (path for path in (tmp_path / "cache").iterdir() if path.is_dir())
    if damage == "cut":
        with open(place / "ends.npy", "r+b") as file:
            file.truncate(200)
    else:
        (place / damage).unlink()
    (place / ".shuffle.npy.1.tmp").write_bytes(b"left by a killed process")
    cache = IndexCache(tmp_path / "cache")
    assert samples_of(nothing_changed(tokens, cache)) == expected
    assert cache.builds == 1
    assert sorted(path.name for path in place.iterdir()) == sorted(
        ["description.json", *(f"{name}.npy" for name in ARRAYS)]
    )


def start(*arguments: object) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", PROCESS, *map(str, arguments)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT)


def answers(processes: list[subprocess.Popen[str]]) -> list[list[str]]:
    outputs = [process.communicate(timeout=120)[0] for process in processes]
    assert [process.returncode for process in processes] == [0] * len(processes)
    return [output.split() for output in outputs]


def test_two_machines_with_two_processes_each_build_once_each(tmp_path: Path, tokens: IndexedTokens) -> None:
    """Machines differ in the folder of their cache; all four processes hold the same arrays."""
    found = answers([start(tokens.prefix, tmp_path / f"node{rank // 2}") for rank in range(4)])
    assert sorted(builds for builds, _ in found[:2]) == sorted(builds for builds, _ in found[2:]) == ["0", "1"]
    assert len({content for _, content in found}) == 1


def test_a_killed_builder_is_followed_by_the_next(tmp_path: Path, tokens: IndexedTokens) -> None:
    """The first process dies in the middle of its writing, holding the lock; the second, which waits, builds."""
    mark = tmp_path / "mark"
    dies = PROCESS.replace(
        "cache = ",
        "import numpy, os\n"
        "real = numpy.save\n"
        "def save(file, *rest, **more):\n"
        f"    real(file, *rest, **more); file.flush(); open({str(mark)!r}, 'w'); time.sleep(60)\n"
        "numpy.save = save\n"
        "cache = ",
    )
    first = subprocess.Popen([sys.executable, "-c", dies, tokens.prefix, str(tmp_path / "cache")], cwd=ROOT)
    deadline = time.monotonic() + 60
    while not mark.exists():
        assert time.monotonic() < deadline and first.poll() is None
        time.sleep(0.05)
    second = start(tokens.prefix, tmp_path / "cache")
    time.sleep(0.5)
    assert second.poll() is None
    first.kill()
    first.wait(timeout=60)
    assert answers([second])[0][0] == "1"
    assert answers([start(tokens.prefix, tmp_path / "cache")])[0][0] == "0"


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path, tokens: IndexedTokens) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match=r"file/cache: the order of samples cannot be kept there .*data\.index_cache"):
        nothing_changed(tokens, IndexCache(tmp_path / "file" / "cache"))
