"""Which processes run together, from the variables of torchrun and Slurm."""

import pytest

from megalith.errors import UserError
from megalith.training.world import World, first_host, from_environment

TORCHRUN = {"RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "1", "MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "29500"}
SLURM = {
    "SLURM_PROCID": "9",
    "SLURM_STEP_ID": "0",
    "SLURM_STEP_NUM_TASKS": "16",
    "SLURM_LOCALID": "1",
    "SLURM_STEP_NODELIST": "gpu[007-008]",
    "SLURM_JOB_ID": "31234",
}


def test_no_launcher_is_one_process():
    assert from_environment({}) == World(0, 1) and not from_environment({}).launched


def test_torchrun():
    assert from_environment(TORCHRUN) == World(3, 4, 1, "10.0.0.1", 29500)


def test_a_slurm_step():
    assert from_environment(SLURM) == World(9, 16, 1, "gpu007", 15000 + 31234 % 15000)


def test_a_slurm_batch_script_alone_is_one_process():
    batch_script = {"SLURM_PROCID": "0", "SLURM_NTASKS": "16", "SLURM_JOB_ID": "1"}
    assert not from_environment(batch_script).launched


def test_a_slurm_step_of_one_task_is_one_process():
    assert not from_environment(SLURM | {"SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "1"}).launched


def test_telling_torch_reads_back():
    env: dict[str, str] = {}
    world = from_environment(SLURM)
    world.tell(env)
    assert from_environment(env) == world


@pytest.mark.parametrize("key, value", [("RANK", "-1"), ("RANK", "4"), ("WORLD_SIZE", "four"), ("MASTER_PORT", None)])
def test_a_wrong_variable_is_named(key, value):
    env = {k: v for k, v in (TORCHRUN | {key: value}).items() if v is not None}
    with pytest.raises(UserError, match=key):
        from_environment(env)


@pytest.mark.parametrize(
    "nodes, host",
    [
        ("n1", "n1"),
        ("n1,n2", "n1"),
        ("gpu[007-009,12],login", "gpu007"),
        ("r[3]-ib,x", "r3-ib"),
        ("a-1.b.c", "a-1.b.c"),
    ],
)
def test_first_host(nodes, host):
    assert first_host(nodes) == host


def test_an_empty_node_list_says_what_to_set():
    with pytest.raises(UserError, match="MASTER_ADDR"):
        first_host("")
