"""What a worker does for one parity case: three steps under a layout, and the same three in one process.

Every parameter gets values far from its usual first ones (norm weights away from 1, a large spread), so a layer that
passes its input on cannot hide an error. Losses are masked unevenly, so that a mean of means differs from the mean.
"""

from __future__ import annotations

import dataclasses
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor

from megalith.config.model import Activation, Attention, ModelConfig, Norm, Position
from megalith.config.recipe import (
    Batch,
    Data,
    Granularity,
    Layout,
    Optimizer,
    OptimizerName,
    Precision,
    Recipe,
    Recompute,
    RecomputeMethod,
    RecomputeModule,
    Sharding,
)
from megalith.data.loader import MicroBatch
from megalith.models.decoder import Decoder
from megalith.parallel.mesh import data_parallel, make_mesh
from megalith.parallelize.apply import build_model
from megalith.parallelize.share import share
from megalith.training.optimizer import build_optimizer
from megalith.training.step import TrainStep

Change = Callable[[Decoder, TrainStep], None]
STEPS, ACCUMULATION, MICRO_BATCH, SEQ_LEN, VOCAB = 3, 3, 2, 12, 101

_SHAPE: dict[str, Any] = {
    "num_layers": 3,
    "hidden_size": 32,
    "head_dim": 4,
    "num_attention_heads": 12,
    "ffn_hidden_size": 144,
    "vocab_size": VOCAB,
    "max_seq_len": SEQ_LEN + 1,
}
FAMILIES: dict[str, dict[str, Any]] = {
    "gpt": {},
    "bloom": {"position": Position.ALIBI, "embedding_norm": True, "activation": Activation.GELU_TANH},
    "llama": {
        "position": Position.ROPE,
        "norm": Norm.RMSNORM,
        "activation": Activation.SWIGLU,
        "linear_bias": False,
        "tied_embeddings": False,
    },
    "neox": {
        "position": Position.ROPE,
        "rope_fraction": 0.5,
        "parallel_residual": True,
        "qk_norm": True,
        "sliding_window": 5,
        "linear_bias": False,
        "qkv_bias": True,
    },
}
RECOMPUTE: dict[str, Recompute] = {
    "none": Recompute(),
    "core_attn": Recompute(Granularity.SELECTIVE),
    "norm+act": Recompute(Granularity.SELECTIVE, (RecomputeModule.NORM, RecomputeModule.MLP_ACT)),
    "all parts": Recompute(Granularity.SELECTIVE, tuple(RecomputeModule)),
    "uniform 1": Recompute(Granularity.FULL),
    "uniform 2": Recompute(Granularity.FULL, num_layers=2),
    "block 2": Recompute(Granularity.FULL, method=RecomputeMethod.BLOCK, num_layers=2),
}


@dataclass(frozen=True)
class Case:
    """One point of the layout space; `dp` x `tp` ranks."""

    dp: int = 1
    tp: int = 1
    sp: bool = False
    family: str = "gpt"
    kv_heads: int = 12
    recompute: str = "none"
    attention: str = "unfused"
    sharding: str = "optimizer"
    optimizer: str = "adamw"
    precision: str = "fp32"
    dropout: float = 0.0
    documents: bool = False

    def __str__(self) -> str:
        sp = "+sp" if self.sp else ""
        words = (self.family, f"kv{self.kv_heads}", self.recompute, self.attention, self.sharding, self.optimizer)
        words += ("documents",) if self.documents else ()
        return f"dp{self.dp} tp{self.tp}{sp} " + " ".join(words).replace(" ", "-")

    def recipe(self, **model_changes) -> Recipe:
        """The case's recipe; SGD does not clip, so that a constant factor in gradients shows."""
        shape = _SHAPE | FAMILIES[self.family] | {"num_kv_heads": self.kv_heads, "dropout": self.dropout}
        shape |= {"attention_dropout": self.dropout} if self.attention == "unfused" else {}
        sgd = Optimizer(name=OptimizerName.SGD, lr=0.05, clip_grad_norm=0.0)
        adamw = Optimizer(lr=0.01, clip_grad_norm=1.0)
        return Recipe(
            model=ModelConfig(**(shape | model_changes)),
            data=Data(prefix="unused", document_boundaries=self.documents),
            batch=Batch(SEQ_LEN, MICRO_BATCH, MICRO_BATCH * ACCUMULATION * self.dp),
            train_steps=10,
            output="unused",
            precision=Precision(self.precision),
            attention=Attention(self.attention),
            layout=Layout(self.tp, self.sp, Sharding(self.sharding)),
            recompute=RECOMPUTE[self.recompute],
            optimizer=sgd if self.optimizer == "sgd" else adamw,
        )


@dataclass(frozen=True)
class Trace:
    """What three steps left behind: losses, norms, and per step every whole gradient and weight by name.

    `parted` names what several ranks hold and hold differently.
    """

    losses: list[float]
    norms: list[float]
    gradients: list[dict[str, torch.Tensor]]
    weights: list[dict[str, torch.Tensor]]
    parted: set[str]


def fill(model: Decoder) -> None:
    """Values drawn by name, the same in every layout, far from an identity."""
    for name, parameter in model.named_parameters():
        generator = torch.Generator().manual_seed(zlib.crc32(name.encode()))
        full = torch.randn(parameter.shape, dtype=torch.float64, generator=generator)
        full = 1 + 0.3 * full if "norm" in name and name.endswith("weight") else 0.2 * full
        tensor, ranges = share(parameter)
        with torch.no_grad():
            tensor.copy_(full[tuple(slice(r.start, r.stop) for r in ranges)])


def micro_batches(step: int, count: int, documents: bool = False) -> list[MicroBatch]:
    """All micro-batches of a step; the later ones score fewer tokens, and hold longer documents."""
    generator = torch.Generator().manual_seed(step)
    made = []
    for index in range(count):
        tokens = torch.randint(0, VOCAB, (MICRO_BATCH, SEQ_LEN + 1), generator=generator)
        mask = torch.rand((MICRO_BATCH, SEQ_LEN), generator=generator) < 1 / (1 + index)
        begins = torch.rand((MICRO_BATCH, SEQ_LEN), generator=generator) < 0.5 / (1 + index)
        made.append(MicroBatch(tokens[:, :-1], tokens[:, 1:], mask, index, begins.cumsum(1) if documents else None))
    return made


def whole(tensor: torch.Tensor) -> torch.Tensor:
    return (tensor.full_tensor() if isinstance(tensor, DTensor) else tensor).detach().clone()


def run_steps(recipe: Recipe, dp: int, mesh, dtype: torch.dtype, change: Change | None = None) -> Trace:
    """Three optimizer steps; `change` may break the model on purpose."""
    model = build_model(recipe, mesh, torch.device("cpu"), main_dtype=dtype)
    fill(model)
    optimizer = build_optimizer(model, recipe.optimizer)
    step = TrainStep(recipe, model, optimizer, mesh, torch.device("cpu"))
    if change is not None:
        change(model, step)
    trace = Trace([], [], [], [], set())

    def before_update(*_) -> None:
        trace.gradients.append({n: whole(p.grad) for n, p in model.named_parameters() if p.grad is not None})
        trace.parted.update(parted_copies(model))

    optimizer.register_step_pre_hook(before_update)
    rank, size = data_parallel(mesh)
    for number in range(1, STEPS + 1):
        everyones = micro_batches(number, ACCUMULATION * dp, recipe.data.document_boundaries)
        mine = [m for m in everyones if m.index % size == rank]
        report = step(number, mine)
        trace.losses.append(report.loss)
        trace.norms.append(report.grad_norm)
        trace.weights.append({n: whole(p) for n, p in model.named_parameters()})
    return trace


def parted_copies(model: Decoder) -> list[str]:
    """Gradients and weights that several ranks hold and that are not bitwise the same on each."""
    parted = []
    for name, parameter in model.named_parameters():
        for kind, tensor in (("weight", parameter), ("gradient", parameter.grad)):
            if not isinstance(tensor, DTensor):
                continue
            for axis in (axis for axis, placement in enumerate(tensor.placements) if placement.is_replicate()):
                mine = tensor.to_local().detach().contiguous()
                others = [torch.empty_like(mine) for _ in range(tensor.device_mesh.size(axis))]
                dist.all_gather(others, mine, group=tensor.device_mesh.get_group(axis))
                parted += [] if all(torch.equal(mine, other) for other in others) else [f"{kind} of {name}"]
    return parted


@cache
def reference(case: Case, dtype: torch.dtype) -> Trace:
    """The same global batches in one plain process, nothing recomputed."""
    return run_steps(case.recipe(), case.dp, None, dtype)


@dataclass(frozen=True)
class Verdict:
    """`difference`: the largest relative one, per tensor relative to its largest element; `parted` as in Trace."""

    difference: float
    where: str
    parted: set[str]


def differences(a: Trace, b: Trace) -> Verdict:
    """How far trace a is from trace b in all that they hold."""
    pairs: list[tuple[str, torch.Tensor, torch.Tensor]] = []
    for step in range(STEPS):
        if lost := a.gradients[step].keys() ^ b.gradients[step].keys():
            return Verdict(torch.inf, f"gradients of {sorted(lost)} in step {step + 1}", a.parted)
        pairs += [(f"loss of step {step + 1}", torch.tensor(a.losses[step]), torch.tensor(b.losses[step]))]
        pairs += [(f"norm of step {step + 1}", torch.tensor(a.norms[step]), torch.tensor(b.norms[step]))]
        pairs += [
            (f"gradient of {n} in step {step + 1}", a.gradients[step][n], g) for n, g in b.gradients[step].items()
        ]
        pairs += [(f"{n} after step {step + 1}", a.weights[step][n], w) for n, w in b.weights[step].items()]
    relative = [
        ((x.double() - y.double()).abs().max() / y.double().abs().max().clamp(min=1e-12)).item() for _, x, y in pairs
    ]
    worst = max(range(len(pairs)), key=lambda i: relative[i] if relative[i] == relative[i] else torch.inf)
    return Verdict(relative[worst], pairs[worst][0], a.parted)


def compare(
    case: Case, dtype: torch.dtype = torch.float64, change: Change | None = None, compiled: bool = False
) -> Verdict | None:
    """The verdict against one process on rank 0; None elsewhere."""
    recipe = dataclasses.replace(case.recipe(), compile=compiled)
    mesh = make_mesh(recipe.layout, case.dp * case.tp)
    trace = run_steps(recipe, case.dp, mesh, dtype, change)
    if dist.get_rank() != 0:
        return None
    plain = dataclasses.replace(case, tp=1, sp=False, recompute="none", sharding="optimizer", precision="fp32")
    return differences(trace, reference(plain, dtype))


def compare_bf16(case: Case) -> tuple[float, set[str], set[torch.dtype]] | None:
    """Rank 0: relative difference of losses and norms to one process in fp32, parted copies, weights' dtypes."""
    mesh = make_mesh(case.recipe().layout, case.dp * case.tp)
    trace = run_steps(case.recipe(), case.dp, mesh, torch.float32)
    if dist.get_rank() != 0:
        return None
    plain = reference(dataclasses.replace(case, tp=1, sp=False, precision="fp32"), torch.float32)
    pairs = zip(trace.losses + trace.norms, plain.losses + plain.norms, strict=True)
    return max(abs(a - b) / b for a, b in pairs), trace.parted, {w.dtype for w in trace.weights[-1].values()}
