"""A training run as a tree of frozen dataclasses; `config/reader.py` reads it, `config/validator.py` checks it.

A recipe holds choices. What follows from them (data-parallel size, micro-batches per step) is a method that is given
what it needs.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from megalith.config.model import Attention, ModelConfig


class Sharding(StrEnum):
    """How data-parallel ranks share training state."""

    NONE = "none"  # replicas: each holds weights, gradients and optimizer whole
    OPTIMIZER = "optimizer"  # sharded state; weights stay gathered in a step, gradients reduced on its last micro-batch
    FULL = "full"  # sharded state; weights are released after each layer's forward


class Precision(StrEnum):
    FP32 = "fp32"
    BF16 = "bf16"  # weights and activations in bf16; main weights, gradient reduction and optimizer in fp32


class Granularity(StrEnum):
    NONE = "none"
    SELECTIVE = "selective"
    FULL = "full"


class RecomputeModule(StrEnum):
    """What `selective` may run again in backward."""

    CORE_ATTN = "core_attn"
    NORM = "norm"
    MLP_ACT = "mlp_act"


class RecomputeMethod(StrEnum):
    """How `full` picks layers."""

    UNIFORM = "uniform"  # chunks of `num_layers` layers; each keeps only its input
    BLOCK = "block"  # only the first `num_layers` layers recompute, each on its own


class OptimizerName(StrEnum):
    ADAMW = "adamw"
    SGD = "sgd"


class ScheduleName(StrEnum):
    CONSTANT = "constant"
    COSINE = "cosine"
    WSD = "wsd"  # warm-up, stable, decay


class SampleOrder(StrEnum):
    """How the samples of a source follow each other; one pass over a source is in Megatron's order either way."""

    EPOCHS = "epochs"  # each pass is shuffled by itself: longer runs, other batches and other weights do not change it
    MEGATRON = "megatron"  # all passes as Megatron shuffles them for the samples that train_steps asks for


@dataclass(frozen=True)
class Layout:
    """How ranks share the work. `data_parallel_size` is what remains of the world."""

    tensor_parallel_size: int = 1
    sequence_parallel: bool = False
    sharding: Sharding = Sharding.OPTIMIZER

    def data_parallel_size(self, world_size: int) -> int:
        """Replicas in a world of `world_size` ranks."""
        return world_size // self.tensor_parallel_size


@dataclass(frozen=True)
class Recompute:
    """Which forward work is done again in backward instead of being kept."""

    granularity: Granularity = Granularity.NONE
    modules: tuple[RecomputeModule, ...] = (RecomputeModule.CORE_ATTN,)
    method: RecomputeMethod = RecomputeMethod.UNIFORM
    num_layers: int = 1


@dataclass(frozen=True)
class Batch:
    """`micro_batch_size`: sequences per forward per data-parallel rank; `global_batch_size`: sequences per step."""

    seq_len: int
    micro_batch_size: int
    global_batch_size: int

    def num_micro_batches(self, data_parallel_size: int) -> int:
        """Micro-batches that each data-parallel rank runs per step."""
        return self.global_batch_size // (self.micro_batch_size * data_parallel_size)


@dataclass(frozen=True)
class BlendPart:
    """A token file and its share of the samples drawn; shares are relative to each other."""

    prefix: str
    weight: float


@dataclass(frozen=True)
class ValidationSet:
    """A token file that is validated on as a whole, under a name of its own."""

    name: str
    prefix: str


@dataclass(frozen=True)
class Data:
    """Token files: one `prefix` (path of a `.bin/.idx` pair without the ending), or a `blend` of several.

    split: shares of train, validation, test of each file.  validation: further files, in place of the split's share.
    document_boundaries: positions start again, and attention stops, at the beginning of each document.
    eod_mask_loss: no loss for what is predicted from the token that ends a document, the next one's first token.
    num_workers: steps that threads read ahead, 0 none.  index_cache: folder; by default `index_cache` beside each file.
    """

    prefix: str | None = None
    blend: tuple[BlendPart, ...] = ()
    split: str = "98,2,0"
    validation: tuple[ValidationSet, ...] = ()
    tokenizer: str | None = None
    order: SampleOrder = SampleOrder.EPOCHS
    document_boundaries: bool = False
    eod_mask_loss: bool = False
    num_workers: int = 1
    index_cache: str | None = None

    @property
    def sources(self) -> tuple[BlendPart, ...]:
        """The files to train on, a single one with weight 1."""
        return (BlendPart(self.prefix, 1.0),) if self.prefix else self.blend


@dataclass(frozen=True)
class Optimizer:
    """AdamW or SGD. `clip_grad_norm` 0 leaves gradients as they are; norms and biases never decay."""

    name: OptimizerName = OptimizerName.ADAMW
    lr: float = 3e-4
    beta1: float = 0.9
    beta2: float = 0.95
    eps: float = 1e-8
    momentum: float = 0.0
    weight_decay: float = 0.1
    clip_grad_norm: float = 1.0


@dataclass(frozen=True)
class Schedule:
    """Learning rate over steps, as a share of `optimizer.lr`; `decay_steps` is used by `wsd` alone."""

    name: ScheduleName = ScheduleName.COSINE
    warmup_steps: int = 0
    decay_steps: int = 0
    min_lr_ratio: float = 0.1


@dataclass(frozen=True)
class Validation:
    """Every `interval_steps` steps (0 never), over at most `max_batches` global batches of the validation split."""

    interval_steps: int = 0
    max_batches: int = 8


@dataclass(frozen=True)
class Checkpoint:
    """Every `interval_steps` steps (0: only at the end), the newest `keep` are kept."""

    interval_steps: int = 0
    keep: int = 2


@dataclass(frozen=True)
class Log:
    interval_steps: int = 10


@dataclass(frozen=True)
class Recipe:
    """One training run. `output`: folder for checkpoints, metrics and plots; `train_steps`: optimizer steps."""

    model: ModelConfig
    data: Data
    batch: Batch
    train_steps: int
    output: str
    seed: int = 1234
    precision: Precision = Precision.FP32
    attention: Attention = Attention.SDPA
    compile: bool = False
    layout: Layout = field(default_factory=Layout)
    recompute: Recompute = field(default_factory=Recompute)
    optimizer: Optimizer = field(default_factory=Optimizer)
    schedule: Schedule = field(default_factory=Schedule)
    validation: Validation = field(default_factory=Validation)
    checkpoint: Checkpoint = field(default_factory=Checkpoint)
    log: Log = field(default_factory=Log)
