"""Which checkpoint folders count as whole, and which are kept."""

import json

import pytest

from megalith.checkpoint import atomic, folder
from megalith.checkpoint.folder import Manifest, StoredFile
from megalith.errors import UserError


def make_checkpoint(output, step: int):
    where = folder.step_folder(output, step)
    where.mkdir(parents=True)
    payload = where / "__0_0.distcp"
    payload.write_bytes(b"weights of step %d" % step)
    files = {payload.name: StoredFile(payload.stat().st_size, atomic.sha256(payload))}
    folder.write_manifest(where, Manifest(step, 8 * step, {"model": {}}, files=files))
    return where


def test_manifest_reads_back(tmp_path):
    manifest = folder.read_manifest(make_checkpoint(tmp_path, 7))
    assert (manifest.step, manifest.consumed_samples, manifest.recipe) == (7, 56, {"model": {}})
    assert manifest.files["__0_0.distcp"].bytes == 17


def test_steps_are_sorted_as_numbers(tmp_path):
    for step in (9, 100_000_000, 10, 99_999_999, 2):
        make_checkpoint(tmp_path, step)
    assert folder.steps(tmp_path) == [2, 9, 10, 99_999_999, 100_000_000]
    assert folder.newest_whole(tmp_path)[0] == folder.step_folder(tmp_path, 100_000_000)


def truncate(where):
    (where / "__0_0.distcp").write_bytes(b"weights")


def flip_a_bit(where):
    payload = where / "__0_0.distcp"
    payload.write_bytes(b"X" + payload.read_bytes()[1:])


def lose_a_file(where):
    (where / "__0_0.distcp").unlink()


def lose_the_manifest(where):
    (where / "manifest.json").unlink()


def cut_the_manifest(where):
    path = where / "manifest.json"
    path.write_text(path.read_text()[:40])


@pytest.mark.parametrize("damage", [truncate, flip_a_bit, lose_a_file, lose_the_manifest, cut_the_manifest])
def test_a_damaged_checkpoint_is_passed_over_and_said(tmp_path, damage):
    whole, damaged = make_checkpoint(tmp_path, 10), make_checkpoint(tmp_path, 20)
    damage(damaged)
    found, passed_over = folder.newest_whole(tmp_path)
    assert found == whole
    assert len(passed_over) == 1 and str(damaged) in passed_over[0]


def test_a_checkpoint_being_written_is_not_seen(tmp_path):
    make_checkpoint(tmp_path, 10).rename(folder.temporary_folder(tmp_path, 10))
    assert folder.newest_whole(tmp_path) == (None, [])


def test_retention_keeps_the_newest_and_clears_leftovers(tmp_path):
    for step in (8, 9, 10, 11):
        make_checkpoint(tmp_path, step)
    folder.temporary_folder(tmp_path, 5).mkdir()
    assert folder.retain(tmp_path, keep=2, step=10) == [8, 11]
    assert sorted(entry.name for entry in folder.checkpoints_folder(tmp_path).iterdir()) == [
        "step_00000009",
        "step_00000010",
    ]


def test_find_checkpoint_takes_the_run_or_the_checkpoint(tmp_path):
    first, second = make_checkpoint(tmp_path, 1), make_checkpoint(tmp_path, 2)
    assert folder.find_checkpoint(tmp_path) == second
    assert folder.find_checkpoint(first) == first


def test_find_checkpoint_says_what_is_missing(tmp_path):
    with pytest.raises(UserError, match="no whole checkpoint"):
        folder.find_checkpoint(tmp_path)
    damaged = make_checkpoint(tmp_path, 3)
    truncate(damaged)
    with pytest.raises(UserError, match="7 bytes; 17 were written"):
        folder.find_checkpoint(damaged)
    with pytest.raises(UserError, match="does not exist"):
        folder.find_checkpoint(tmp_path / "elsewhere")


def test_a_flipped_bit_is_not_opened(tmp_path):
    whole, damaged = make_checkpoint(tmp_path, 1), make_checkpoint(tmp_path, 2)
    flip_a_bit(damaged)
    assert folder.find_checkpoint(tmp_path) == whole
    with pytest.raises(UserError, match="sha256 differs"):
        folder.find_checkpoint(damaged)


@pytest.mark.parametrize("fields", [{"recipe": None}, {"step": "7"}, {"step": None}, {"files": None}])
def test_a_manifest_of_the_wrong_kind_is_no_manifest(tmp_path, fields):
    where = make_checkpoint(tmp_path, 7)
    path = where / "manifest.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | fields))
    with pytest.raises(UserError, match="does not read as a checkpoint's manifest"):
        folder.read_manifest(where)


def test_another_format_is_refused(tmp_path):
    where = make_checkpoint(tmp_path, 1)
    (where / "manifest.json").write_text((where / "manifest.json").read_text().replace('"format": 1', '"format": 99'))
    with pytest.raises(UserError, match="format 99"):
        folder.read_manifest(where)


def test_publishing_replaces_an_older_folder_of_the_name(tmp_path):
    old, new = tmp_path / "step", tmp_path / ".step.writing"
    old.mkdir()
    (old / "stale").touch()
    new.mkdir()
    (new / "fresh").touch()
    atomic.publish_folder(new, old)
    assert [entry.name for entry in tmp_path.iterdir()] == ["step"]
    assert [entry.name for entry in old.iterdir()] == ["fresh"]
