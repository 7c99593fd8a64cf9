"""Recipes are read as their author meant them: types, shorthands, presets, overrides, and back to YAML."""

from __future__ import annotations

import dataclasses
import time

import pytest

from megalith.config.model import Activation, ModelConfig, Norm, Position, RopeScaling
from megalith.config.presets import PRESETS, model_preset
from megalith.config.reader import parse_recipe, read_recipe, to_tree, to_yaml
from megalith.config.recipe import (
    Batch,
    BlendPart,
    Data,
    Granularity,
    Layout,
    Optimizer,
    Precision,
    Recipe,
    Recompute,
    RecomputeMethod,
    RecomputeModule,
    Schedule,
    ScheduleName,
    Sharding,
    ValidationSet,
)
from megalith.errors import UserError

SMALL = """
model: gpt-tiny
data: {prefix: data/text}
batch: {seq_len: 64, micro_batch_size: 2, global_batch_size: 16}
train_steps: 100
output: runs/test
"""


def read(*overrides: str, text: str = SMALL) -> Recipe:
    return parse_recipe(text, list(overrides), 1)


def test_defaults_are_those_of_the_dataclasses() -> None:
    expected = Recipe(
        model_preset("gpt-tiny"), Data("data/text"), Batch(64, 2, 16), train_steps=100, output="runs/test"
    )
    assert read() == expected


def test_a_whole_model_without_a_preset() -> None:
    model = """
model:
  num_layers: 2
  hidden_size: 64
  num_attention_heads: 4
  vocab_size: 101
  max_seq_len: 64
  num_kv_heads: 1
  position: rope
  rope_scaling: {factor: 4, original_max_seq_len: 32}
  norm: rmsnorm
  activation: swiglu
  qkv_bias: true
  tied_embeddings: false
"""
    expected = ModelConfig(
        num_layers=2,
        hidden_size=64,
        num_attention_heads=4,
        vocab_size=101,
        max_seq_len=64,
        num_kv_heads=1,
        position=Position.ROPE,
        rope_scaling=RopeScaling(factor=4.0, original_max_seq_len=32),
        norm=Norm.RMSNORM,
        activation=Activation.SWIGLU,
        qkv_bias=True,
        tied_embeddings=False,
    )
    assert read(text=SMALL.replace("model: gpt-tiny", model)).model == expected


@pytest.mark.parametrize(
    ("written", "meant"),
    [("1e-4", 1e-4), ("1E-4", 1e-4), ("3e-04", 3e-4), (".5", 0.5), ("1", 1.0), ("+0.1", 0.1), ("'0.1'", 0.1)],
)
def test_numbers_that_yaml_1_1_takes_for_text(written: str, meant: float) -> None:
    from_file = read(text=f"{SMALL}\noptimizer: {{lr: {written}}}").optimizer.lr
    assert (from_file, read(f"optimizer.lr={written}").optimizer.lr) == (meant, meant)
    assert isinstance(from_file, float)


@pytest.mark.parametrize("written", ["yes", "no", "on", "1e3", "007", "12:30:45", "2024-01-01", "0x10", "1_0"])
def test_text_that_yaml_1_1_takes_for_something_else(written: str) -> None:
    assert read(f"output={written}").output == written
    assert read(text=SMALL.replace("runs/test", written)).output == written


@pytest.mark.parametrize(("written", "meant"), [("true", True), ("True", True), ("false", False), ("FALSE", False)])
def test_booleans(written: str, meant: bool) -> None:
    assert read(f"compile={written}").compile is meant


def test_optional_fields_take_null() -> None:
    assert read("model.num_kv_heads=2").model.num_kv_heads == 2
    assert read("model.num_kv_heads=null").model.num_kv_heads is None
    assert read("model=llama-tiny", "model.rope_scaling=null").model.rope_scaling is None
    assert read("data.tokenizer=").data.tokenizer is None


def test_an_empty_section_means_its_defaults() -> None:
    assert read(text=SMALL + "\nlayout:\nrecompute:\n") == read()


def test_preset_with_fields_laid_over() -> None:
    text = SMALL.replace("model: gpt-tiny", "model: {preset: llama-tiny, num_layers: 3, rope_scaling: {factor: 2}}")
    tiny = model_preset("llama-tiny")
    assert tiny.rope_scaling is not None
    scaling = dataclasses.replace(tiny.rope_scaling, factor=2.0)
    assert read(text=text).model == dataclasses.replace(tiny, num_layers=3, rope_scaling=scaling)


def test_overrides_go_below_a_shorthand() -> None:
    assert read("model.num_layers=5").model == dataclasses.replace(model_preset("gpt-tiny"), num_layers=5)
    assert read("model=llama-tiny", "model.num_layers=5").model.num_kv_heads == 2
    full = read("recompute=full", "recompute.method=block", "recompute.num_layers=2").recompute
    assert full == Recompute(granularity=Granularity.FULL, method=RecomputeMethod.BLOCK, num_layers=2)


def test_the_shorthand_of_recompute() -> None:
    spelled_out = "recompute: {granularity: selective, modules: [core_attn]}"
    assert read(text=f"{SMALL}\nrecompute: selective") == read(text=f"{SMALL}\n{spelled_out}")
    modules = read("recompute=selective", "recompute.modules=[core_attn, mlp_act]").recompute.modules
    assert modules == (RecomputeModule.CORE_ATTN, RecomputeModule.MLP_ACT)


def test_overrides_keep_what_they_do_not_name_and_the_last_wins() -> None:
    recipe = read(
        "optimizer.lr=1", "optimizer.lr=2", "layout={sharding: full}", text=f"{SMALL}\noptimizer: {{eps: 1e-6}}"
    )
    assert recipe.optimizer == Optimizer(lr=2.0, eps=1e-6)
    assert recipe.layout == Layout(sharding=Sharding.FULL)
    assert read("output=a=b: c #d").output == "a=b: c #d"


def rich_recipe() -> Recipe:
    return Recipe(
        model=model_preset("llama-3.1-8b"),
        data=Data("a: b", split="0.999,0.001,0", tokenizer="é.json"),
        batch=Batch(8192, 1, 8),
        train_steps=1000,
        output="1e-4",
        seed=2**63 - 1,
        precision=Precision.BF16,
        compile=True,
        recompute=Recompute(Granularity.SELECTIVE, (RecomputeModule.CORE_ATTN,)),
        optimizer=Optimizer(lr=1.23e-7, eps=1e-30),
        schedule=Schedule(ScheduleName.WSD, 10, 100, 0.0),
    )


@pytest.mark.parametrize("name", PRESETS)
def test_every_preset_round_trips_through_yaml(name: str) -> None:
    recipe = dataclasses.replace(rich_recipe(), model=model_preset(name), batch=Batch(64, 1, 8))
    assert parse_recipe(to_yaml(recipe), []) == recipe


def test_the_tree_holds_plain_values() -> None:
    tree = to_tree(rich_recipe())
    assert tree["precision"] == "bf16" and type(tree["precision"]) is str
    assert tree["recompute"]["modules"] == ["core_attn"]
    assert tree["model"]["rope_scaling"]["factor"] == 8.0


def test_files_are_read_and_named_in_messages(tmp_path) -> None:
    path = tmp_path / "run.yaml"
    path.write_text(to_yaml(rich_recipe()), encoding="utf-8")
    assert read_recipe(path, []) == rich_recipe()
    with pytest.raises(UserError, match=r"run\.yaml has a fault:\n  - seed=x"):
        read_recipe(path, ["seed=x"])
    with pytest.raises(UserError, match=r"cannot read the recipe .*absent\.yaml: No such file"):
        read_recipe(tmp_path / "absent.yaml", [])
    with pytest.raises(UserError, match=r"did you mean .*/run\.yaml\?"):
        read_recipe(tmp_path / "run.yml", [])
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(UserError, match="cannot read the recipe"):
        read_recipe(path, [])


def test_reading_is_quick() -> None:
    started = time.process_time()
    for _ in range(10):
        read("model=llama-3.1-405b", "batch.seq_len=8192")
    assert time.process_time() - started < 1.0


def test_a_blend_and_validation_sets_are_read_and_written_back() -> None:
    recipe = read(
        "data.prefix=null",
        'data.blend=[{"prefix":a,"weight":70},{"prefix":b,"weight":30}]',
        'data.validation=[{"name":news,"prefix":v}]',
    )
    assert recipe.data.sources == recipe.data.blend == (BlendPart("a", 70.0), BlendPart("b", 30.0))
    assert recipe.data.validation == (ValidationSet("news", "v"),)
    assert parse_recipe(to_yaml(recipe), []) == recipe
    assert read().data.sources == (BlendPart("data/text", 1.0),)
