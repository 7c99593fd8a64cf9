"""Choices without effect: a recipe that makes one runs, and the program says so."""

from __future__ import annotations

from megalith.config.model import Attention, Position
from megalith.config.recipe import (
    Granularity,
    Optimizer,
    OptimizerName,
    Recipe,
    Recompute,
    RecomputeModule,
    ScheduleName,
)
from megalith.config.split import split_shares
from megalith.config.wording import shown


def fused_attention_keeps_no_scores(recipe: Recipe) -> str | None:
    recompute = recipe.recompute
    if recipe.attention is not Attention.SDPA or recompute.granularity is not Granularity.SELECTIVE:
        return None
    if RecomputeModule.CORE_ATTN not in recompute.modules:
        return None
    return (
        "recompute of core_attn has no effect with attention=sdpa: the fused kernel keeps no scores, so nothing is "
        "saved; it has one with attention=unfused"
    )


def recompute_fields_of_another_granularity(recipe: Recipe) -> str | None:
    recompute, default = recipe.recompute, Recompute()
    idle = []
    if recompute.granularity is not Granularity.SELECTIVE and recompute.modules != default.modules:
        idle.append("recompute.modules (for selective)")
    if recompute.granularity is not Granularity.FULL:
        idle += [f"recompute.{n} (for full)" for n in ("method", "num_layers") if _changed(recompute, default, n)]
    return f"{', '.join(idle)}: no effect with granularity={recompute.granularity}" if idle else None


def rope_fields_without_rope(recipe: Recipe) -> str | None:
    model = recipe.model
    if model.position is Position.ROPE or (model.rope_theta == 10000.0 and model.rope_fraction == 1.0):
        return None
    return f"model.rope_theta and model.rope_fraction have no effect with position={model.position}"


def window_as_wide_as_the_sequence(recipe: Recipe) -> str | None:
    window, seq_len = recipe.model.sliding_window, recipe.batch.seq_len
    if window is None or window < seq_len:
        return None
    return f"model.sliding_window={window} has no effect in training at batch.seq_len={seq_len}"


def optimizer_fields_of_another_optimizer(recipe: Recipe) -> str | None:
    if recipe.optimizer.name is not OptimizerName.SGD:
        return None
    idle = [n for n in ("beta1", "beta2", "eps") if _changed(recipe.optimizer, Optimizer(), n)]
    return f"{', '.join(f'optimizer.{n}' for n in idle)}: no effect with optimizer.name=sgd" if idle else None


def decay_steps_without_wsd(recipe: Recipe) -> str | None:
    schedule = recipe.schedule
    if schedule.name is ScheduleName.WSD or schedule.decay_steps == 0:
        return None
    return (
        f"schedule.decay_steps={schedule.decay_steps} has no effect with schedule.name={schedule.name}; it is for wsd"
    )


def blend_parts_never_drawn(recipe: Recipe) -> str | None:
    idle = [part.prefix for part in recipe.data.blend if part.weight == 0]
    return f"data.blend: {', '.join(map(shown, idle))} has weight 0 and is never drawn" if idle else None


def validation_share_beside_sets(recipe: Recipe) -> str | None:
    share = split_shares(recipe.data.split)[1]
    if not recipe.data.validation or share == 0:
        return None
    return (
        f"data.split={recipe.data.split} sets {share:.1%} of each file aside for validation, which data.validation "
        "replaces; data.split=100,0,0 trains on it"
    )


def _changed(node: object, default: object, name: str) -> bool:
    return getattr(node, name) != getattr(default, name)


NOTES = (
    fused_attention_keeps_no_scores,
    recompute_fields_of_another_granularity,
    rope_fields_without_rope,
    window_as_wide_as_the_sequence,
    optimizer_fields_of_another_optimizer,
    decay_steps_without_wsd,
    blend_parts_never_drawn,
    validation_share_beside_sets,
)
