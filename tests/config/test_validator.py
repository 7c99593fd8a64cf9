"""Rules of the validator: what they let through, what they leave unjudged, and the notes on choices without effect."""

from __future__ import annotations

from dataclasses import replace

import pytest

from megalith.config.model import Attention
from megalith.config.partial import Unjudged, partial_instance, without
from megalith.config.presets import PRESETS, model_preset
from megalith.config.recipe import (
    Batch,
    BlendPart,
    Data,
    Granularity,
    Layout,
    Optimizer,
    OptimizerName,
    Recipe,
    Recompute,
    RecomputeMethod,
    RecomputeModule,
    Schedule,
    ScheduleName,
    Validation,
    ValidationSet,
)
from megalith.config.split import split_shares
from megalith.config.validator import faults, notes
from megalith.config.wording import choice, multiples


def recipe(preset: str = "gpt-tiny", **fields: object) -> Recipe:
    """A faultless recipe with `fields` in place of its own; those of the model by their own names."""
    of_model = {name: fields.pop(name) for name in list(fields) if hasattr(PRESETS[preset], name) and name != "output"}
    base = Recipe(replace(model_preset(preset), **of_model), Data("text"), Batch(64, 2, 16), 100, "runs/x")
    return replace(base, **fields)  # type: ignore[arg-type]


@pytest.mark.parametrize("preset", PRESETS)
def test_presets_have_no_fault_under_the_tensor_sizes_of_their_papers(preset: str) -> None:
    sizes = (1, 2) if preset.endswith(("tiny", "demo")) else (1, 8) if preset != "gpt3-126m" else (1, 4)
    for size in sizes:
        layout = Layout(tensor_parallel_size=size, sequence_parallel=size > 1)
        assert faults(recipe(preset, layout=layout), 8) == []


@pytest.mark.parametrize(
    "fields",
    [
        {"vocab_size": 101, "layout": Layout(4)},  # any vocabulary and any number of kv heads can be split
        {"num_kv_heads": 1, "layout": Layout(4)},
        {"hidden_size": 96, "num_attention_heads": 12, "num_kv_heads": 3, "layout": Layout(4)},
        {"hidden_size": 62, "head_dim": 16},
        {"attention_dropout": 0.1, "attention": Attention.UNFUSED},
        {"dropout": 0.1},
        {"recompute": Recompute(Granularity.FULL, method=RecomputeMethod.BLOCK, num_layers=2)},
        {"recompute": Recompute(Granularity.SELECTIVE), "compile": True},
        {"recompute": Recompute(Granularity.SELECTIVE, (RecomputeModule.NORM,))},
        {"schedule": Schedule(ScheduleName.WSD, warmup_steps=10, decay_steps=90)},
        {"schedule": Schedule(warmup_steps=99)},
        {"optimizer": Optimizer(OptimizerName.SGD, momentum=0.9, clip_grad_norm=0.0, weight_decay=0.0)},
        {"data": Data("text", split="1,0,0")},
        {"data": Data("text", split="0.999,0.001,0"), "validation": Validation(5)},
        {"seed": 2**63 - 1},
    ],
)
def test_what_is_allowed(fields: dict) -> None:
    assert faults(recipe(**fields), 4) == []


def test_without_a_world_size_only_what_no_world_mends_is_a_fault() -> None:
    layout = recipe(layout=Layout(2))
    assert faults(layout, None) == []
    assert len(faults(layout, 3)) == 1
    (heads,) = faults(recipe(layout=Layout(3), ffn_hidden_size=240), None)
    assert heads == "num_attention_heads=4 cannot be split over tensor_parallel_size=3; choose 1, 2 or 4"


def test_the_message_that_the_design_gives_as_example() -> None:
    odd = recipe(num_attention_heads=6, head_dim=8, ffn_hidden_size=48, layout=Layout(4))
    assert faults(odd, None) == [
        "num_attention_heads=6 cannot be split over tensor_parallel_size=4; choose 1, 2, 3 or 6"
    ]


def test_offered_tensor_sizes_satisfy_every_rule_at_once() -> None:
    """Heads allow 1, 2, 3, 4, 6, 12; the MLP 1, 2, 4, 5, 10, 20; eight processes 1, 2, 4, 8."""
    both = recipe(num_attention_heads=12, head_dim=8, ffn_hidden_size=20, layout=Layout(8))
    assert [message.partition("; ")[2] for message in faults(both, 8)] == ["choose 1, 2 or 4"] * 2


def test_rules_on_unusable_fields_are_left_out_and_the_others_judged() -> None:
    partial = without(recipe(num_kv_heads=3, layout=Layout(4)), ["model.hidden_size", "layout.tensor_parallel_size"])
    assert faults(partial, 4) == ["num_kv_heads=3 must divide num_attention_heads=4; choose 1, 2 or 4"]
    assert len(faults(recipe(num_attention_heads=0, num_layers=0), 1)) == 2


def test_a_partial_dataclass_refuses_only_what_is_unusable() -> None:
    batch = partial_instance(Batch, {"seq_len": 8, "micro_batch_size": 2}, ["global_batch_size"])
    assert batch.seq_len == 8 and isinstance(batch, Batch)
    with pytest.raises(Unjudged):
        batch.num_micro_batches(1)


def test_huge_numbers_are_judged_quickly() -> None:
    assert faults(recipe(num_attention_heads=10**12, hidden_size=10**12 + 1, layout=Layout(10**9 + 7)), 10**9)


@pytest.mark.parametrize(
    ("split", "shares"),
    [
        ("98,2,0", (0.98, 0.02, 0.0)),
        ("1,0,0", (1.0, 0.0, 0.0)),
        (" 8 , 1 , 1 ", (0.8, 0.1, 0.1)),
        ("3.,1,.0", (0.75, 0.25, 0)),
    ],
)
def test_split_shares(split: str, shares: tuple[float, float, float]) -> None:
    assert split_shares(split) == pytest.approx(shares)


@pytest.mark.parametrize(
    "split",
    [
        "",
        "1",
        "1,2,3,4",
        "99,-1,2",
        "a,b,c",
        "inf,1,1",
        "0,1,1",
        "1e308,1e308,1e308",
        "9" * 400 + ",1,1",
        "0.999,1e-3,0",
        "1;2;3",
    ],
)
def test_split_refused_with_a_way_out_that_works(split: str) -> None:
    with pytest.raises(ValueError, match="choose ") as refused:
        split_shares(split)
    assert sum(split_shares(str(refused.value).rpartition("choose ")[2])) == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"recompute": Recompute(Granularity.SELECTIVE)}, "core_attn has no effect with attention=sdpa"),
        ({"recompute": Recompute(num_layers=2)}, "recompute.num_layers (for full): no effect with granularity=none"),
        ({"recompute": Recompute(modules=(RecomputeModule.NORM,))}, "recompute.modules (for selective): no effect"),
        ({"rope_theta": 5e5}, "model.rope_theta and model.rope_fraction have no effect with position=learned"),
        ({"sliding_window": 64}, "model.sliding_window=64 has no effect"),
        ({"optimizer": Optimizer(OptimizerName.SGD, beta1=0.8)}, "optimizer.beta1: no effect with optimizer.name=sgd"),
        ({"schedule": Schedule(decay_steps=5)}, "schedule.decay_steps=5 has no effect with schedule.name=cosine"),
        ({"data": Data(blend=(BlendPart("a", 1), BlendPart("b", 0)))}, "b has weight 0 and is never drawn"),
        (
            {"data": Data("a", split="90,10,0", validation=(ValidationSet("v", "v"),))},
            "sets 10.0% of each file aside for validation, which data.validation replaces",
        ),
    ],
)
def test_notes_on_choices_without_effect(fields: dict, says: str) -> None:
    assert faults(recipe(**fields), 1) == []
    (note,) = notes(recipe(**fields))
    assert says in note


def test_no_note_on_choices_with_effect() -> None:
    unfused = recipe(attention=Attention.UNFUSED, recompute=Recompute(Granularity.SELECTIVE), sliding_window=32)
    assert notes(recipe()) == notes(unfused) == notes(recipe("llama-tiny")) == []


def test_choice_and_multiples() -> None:
    assert choice([1], 5) == "1"
    assert choice([6, 3, 2, 1], 4) == "1, 2, 3 or 6"
    assert choice(range(1, 100), 50) == "47, 48, 49, 50, 51 or 52"
    assert multiples(20, 8) == "16 or 24"
    assert multiples(3, 8) == "8"
    assert multiples(63, 4, most=63) == "60"
