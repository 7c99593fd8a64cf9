"""The rules between fields that hold on any number of processes: each function returns its message or None."""

from __future__ import annotations

from collections.abc import Callable
from os.path import expanduser

from megalith.config.data_rules import DATA_RULES
from megalith.config.model import Attention, Position
from megalith.config.recipe import Granularity, OptimizerName, Recipe, RecomputeModule, ScheduleName
from megalith.config.wording import choice, multiples


def hidden_size_over_heads(recipe: Recipe) -> str | None:
    hidden, heads = recipe.model.hidden_size, recipe.model.num_attention_heads
    if recipe.model.head_dim is not None or hidden % heads == 0:
        return None
    return (
        f"hidden_size={hidden} is not a multiple of num_attention_heads={heads}; "
        f"choose model.hidden_size={multiples(hidden, heads)}, or give model.head_dim={max(hidden // heads, 1)}"
    )


def kv_heads_divide_heads(recipe: Recipe) -> str | None:
    heads, kv_heads = recipe.model.num_attention_heads, recipe.model.kv_heads
    if heads % kv_heads == 0:
        return None
    divisors = [n for n in range(1, min(heads, 4096) + 1) if heads % n == 0]
    return f"num_kv_heads={kv_heads} must divide num_attention_heads={heads}; choose {choice(divisors, kv_heads)}"


def rope_rotates_something(recipe: Recipe) -> str | None:
    model = recipe.model
    if model.position is not Position.ROPE or model.rotary_dim > 0:
        return None
    if model.head_width < 2:
        return (
            f"head_dim={model.head_width} is too narrow for position=rope, which turns pairs; choose model.head_dim=2"
        )
    least = 2 / model.head_width
    return (
        f"rope_fraction={model.rope_fraction} rotates no pair of head_dim={model.head_width}; "
        f"choose model.rope_fraction={least} or more"
    )


def rope_scaling_needs_rope(recipe: Recipe) -> str | None:
    if recipe.model.rope_scaling is None or recipe.model.position is Position.ROPE:
        return None
    return (
        f"model.rope_scaling is for position=rope, and position={recipe.model.position}; "
        "choose model.rope_scaling=null or model.position=rope"
    )


def rope_scaling_band(recipe: Recipe) -> str | None:
    scaling = recipe.model.rope_scaling
    if scaling is None or scaling.low_freq_factor < scaling.high_freq_factor:
        return None
    return (
        f"low_freq_factor={scaling.low_freq_factor} must be below high_freq_factor={scaling.high_freq_factor}; "
        f"choose model.rope_scaling.high_freq_factor={4 * scaling.low_freq_factor}"
    )


def output_not_empty(recipe: Recipe) -> str | None:
    if recipe.output:
        return None
    return "output='' must name a folder; choose for example output=runs/first"


def paths_without_tilde(recipe: Recipe) -> str | None:
    data = recipe.data
    files = [("data.blend: prefix", part.prefix) for part in data.blend]
    files += [("data.validation: prefix", one.prefix) for one in data.validation]
    files += [("data.prefix", data.prefix), ("data.tokenizer", data.tokenizer), ("data.index_cache", data.index_cache)]
    for name, path in [("output", recipe.output), *files]:
        if path and path.startswith("~"):
            return f"{name}={path} begins with ~, which only a shell expands; choose {name}={expanduser(path)}"
    return None


def sequence_fits_model(recipe: Recipe) -> str | None:
    seq_len, longest = recipe.batch.seq_len, recipe.model.max_seq_len
    if seq_len <= longest:
        return None
    return (
        f"seq_len={seq_len} must be at most max_seq_len={longest}; "
        f"choose batch.seq_len={longest} or model.max_seq_len={seq_len}"
    )


def sdpa_without_attention_dropout(recipe: Recipe) -> str | None:
    if recipe.attention is not Attention.SDPA or recipe.model.attention_dropout == 0:
        return None
    return (
        f"attention_dropout={recipe.model.attention_dropout} cannot be had with attention=sdpa, whose kernel keeps no "
        "scores to drop; choose attention=unfused or model.attention_dropout=0"
    )


def recomputed_modules(recipe: Recipe) -> str | None:
    modules = recipe.recompute.modules
    if recipe.recompute.granularity is not Granularity.SELECTIVE or (modules and len(set(modules)) == len(modules)):
        return None
    rule = "names a module twice" if modules else "names none, and granularity=selective needs one"
    way_out = ", ".join(dict.fromkeys(modules)) or RecomputeModule.CORE_ATTN
    return f"recompute.modules=[{', '.join(modules)}] {rule}; choose recompute.modules=[{way_out}]"


def recomputed_layers(recipe: Recipe) -> str | None:
    asked, layers = recipe.recompute.num_layers, recipe.model.num_layers
    if recipe.recompute.granularity is not Granularity.FULL or asked <= layers:
        return None
    return (
        f"recompute.num_layers={asked} must be between 1 and model.num_layers={layers}; "
        f"choose recompute.num_layers={layers}"
    )


def compile_without_small_modules(recipe: Recipe) -> str | None:
    modules = recipe.recompute.modules
    small = [module for module in dict.fromkeys(modules) if module is not RecomputeModule.CORE_ATTN]
    if not recipe.compile or recipe.recompute.granularity is not Granularity.SELECTIVE or not small:
        return None
    return (
        f"recompute.modules=[{', '.join(modules)}] cannot be had with compile=true, where the compiler decides what "
        f"{' and '.join(small)} would keep; choose compile=false or recompute.modules=[core_attn]"
    )


def warmup_within_training(recipe: Recipe) -> str | None:
    warmup, steps = recipe.schedule.warmup_steps, recipe.train_steps
    if warmup < steps:
        return None
    return (
        f"warmup_steps={warmup} must be below train_steps={steps}; "
        f"choose schedule.warmup_steps={steps - 1} or train_steps={warmup + 1}"
    )


def wsd_decay_fits(recipe: Recipe) -> str | None:
    decay, room = recipe.schedule.decay_steps, recipe.train_steps - recipe.schedule.warmup_steps
    if recipe.schedule.name is not ScheduleName.WSD or 1 <= decay <= room or room < 1:
        return None
    way_out = room if decay > room else max(1, room // 10)
    return (
        f"decay_steps={decay} must be between 1 and train_steps - warmup_steps = {room} for schedule.name=wsd; "
        f"choose schedule.decay_steps={way_out}"
    )


def momentum_is_of_sgd(recipe: Recipe) -> str | None:
    momentum = recipe.optimizer.momentum
    if momentum == 0 or recipe.optimizer.name is OptimizerName.SGD:
        return None
    return f"momentum={momentum} is for sgd alone (adamw has beta1); choose optimizer.momentum=0 or optimizer.name=sgd"


RULES: tuple[Callable[[Recipe], str | None], ...] = (
    hidden_size_over_heads,
    kv_heads_divide_heads,
    rope_rotates_something,
    rope_scaling_needs_rope,
    rope_scaling_band,
    output_not_empty,
    paths_without_tilde,
    *DATA_RULES,
    sequence_fits_model,
    sdpa_without_attention_dropout,
    recomputed_modules,
    recomputed_layers,
    compile_without_small_modules,
    warmup_within_training,
    wsd_decay_fits,
    momentum_is_of_sgd,
)
