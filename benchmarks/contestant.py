"""One process that trains the benchmark's model, a step each time it is told to; `train_vs_peers.py` starts it.

It reads a contestant as JSON on its command line, then orders from stdin, one a line, and answers each with one line of
JSON: `step` trains on the next batch, `finish` reports memory and ends. Between orders it sleeps in a read.

# B sequences  S positions
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from megalith.config.model import Activation, Attention, ModelConfig
from megalith.config.recipe import Batch, Data, Layout, Optimizer, Precision, Recipe, Schedule, ScheduleName
from megalith.data.loader import MicroBatch
from megalith.models.decoder import Decoder
from megalith.models.init import draw
from megalith.parallel.mesh import make_mesh
from megalith.parallelize.apply import build_model
from megalith.training.build import process_group
from megalith.training.optimizer import build_optimizer
from megalith.training.step import TrainStep
from megalith.training.world import World

SEED = 1234
MODEL = ModelConfig(
    num_layers=8,
    hidden_size=512,
    num_attention_heads=8,
    vocab_size=8192,
    max_seq_len=512,
    activation=Activation.GELU_TANH,
)
OPTIMIZER = Optimizer(lr=3e-4)


@dataclass(frozen=True)
class Contestant:
    """Who trains and how. `attention`: sdpa, or unfused (which transformers calls eager)."""

    library: str
    precision: str
    attention: str
    processes: int = 1

    @property
    def name(self) -> str:
        """As written in tables and pictures."""
        where = "" if self.processes == 1 else f", {self.processes} processes (tensor parallel)"
        return f"{self.library} {self.precision} {self.attention}{where}"


def batch(step: int, micro_batch_size: int) -> tuple[Tensor, Tensor, Tensor]:
    """(tokens, targets, loss mask) of a step, (B, S) each; the last position is unscored.

    The same numbers for every contestant, token frequencies falling as 1/rank. transformers gets the tokens as labels,
    which it shifts itself.
    """
    generator = torch.Generator().manual_seed(SEED + step)
    rank = torch.rand(micro_batch_size, MODEL.max_seq_len, generator=generator, dtype=torch.float64)
    tokens = (MODEL.vocab_size**rank).long() - 1
    mask = torch.ones_like(tokens, dtype=torch.bool)
    mask[:, -1] = False
    return tokens, tokens.roll(-1, 1), mask


@dataclass(frozen=True)
class Trainer:
    """`train_step(step)` gives the step's mean loss; `forward()` the loss of one batch with its graph."""

    model: nn.Module
    train_step: Callable[[int], float]
    forward: Callable[[], Tensor]


@contextlib.contextmanager
def megalith_trainer(who: Contestant, world: World, micro_batch_size: int) -> Iterator[Trainer]:
    """Megalith as `megalith train` builds it."""
    recipe = Recipe(
        model=MODEL,
        data=Data(prefix="none: batches are drawn"),
        batch=Batch(MODEL.max_seq_len, micro_batch_size, micro_batch_size),
        train_steps=1_000_000,
        output="none: nothing is written",
        seed=SEED,
        precision=Precision(who.precision),
        attention=Attention(who.attention),
        layout=Layout(tensor_parallel_size=who.processes, sequence_parallel=who.processes > 1),
        optimizer=OPTIMIZER,
        schedule=Schedule(name=ScheduleName.CONSTANT),
    )
    with process_group(world, mesh_needed=recipe.precision is not Precision.FP32) as device:
        mesh = make_mesh(recipe.layout, world.size) if torch.distributed.is_initialized() else None
        model = build_model(recipe, mesh, device)
        train_step = TrainStep(recipe, model, build_optimizer(model, recipe.optimizer), mesh, device)
        yield Trainer(
            model,
            lambda step: train_step(step, [MicroBatch(*batch(step, micro_batch_size), index=0)]).loss,
            lambda: model(*batch(1, micro_batch_size)),
        )


@contextlib.contextmanager
def transformers_trainer(who: Contestant, world: World, micro_batch_size: int) -> Iterator[Trainer]:
    """GPT2LMHeadModel in the loop that its users write: loss from labels, clip, fused AdamW; bf16 by autocast."""
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(
        vocab_size=MODEL.vocab_size,
        n_positions=MODEL.max_seq_len,
        n_embd=MODEL.hidden_size,
        n_layer=MODEL.num_layers,
        n_head=MODEL.num_attention_heads,
        bos_token_id=0,
        eos_token_id=0,
        activation_function="gelu_pytorch_tanh",  # one kernel; GPT-2's own "gelu_new" spells the same function in seven
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
        use_cache=False,
        attn_implementation="sdpa" if who.attention == "sdpa" else "eager",
    )
    model = GPT2LMHeadModel(config).train()
    copy_first_weights(model)
    decayed = [p for p in model.parameters() if p.ndim >= 2]
    others = [p for p in model.parameters() if p.ndim < 2]
    groups = [{"params": decayed, "weight_decay": OPTIMIZER.weight_decay}, {"params": others, "weight_decay": 0.0}]
    betas = (OPTIMIZER.beta1, OPTIMIZER.beta2)
    optimizer = torch.optim.AdamW(groups, lr=OPTIMIZER.lr, betas=betas, eps=OPTIMIZER.eps, fused=True)

    def forward(step: int) -> Tensor:
        tokens, _, _ = batch(step, micro_batch_size)
        with torch.autocast("cpu", torch.bfloat16, enabled=who.precision == "bf16"):
            return model(input_ids=tokens, labels=tokens).loss

    def train_step(step: int) -> float:
        loss = forward(step)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), OPTIMIZER.clip_grad_norm)
        optimizer.step()
        optimizer.zero_grad()
        return loss.item()

    yield Trainer(model, train_step, lambda: forward(1))


@torch.no_grad()
def copy_first_weights(peer: nn.Module) -> None:
    """Give a GPT2LMHeadModel the values with which Megalith's model of this seed starts."""
    with torch.device("meta"):
        shapes = {name: tuple(p.shape) for name, p in Decoder(MODEL).named_parameters()}
    ours = {name: draw(name, shape, range(shape[0]), MODEL, SEED) for name, shape in shapes.items()}
    theirs = dict(peer.named_parameters())
    theirs.pop("transformer.wte.weight").copy_(ours.pop("embedding.token.weight"))
    theirs.pop("transformer.wpe.weight").copy_(ours.pop("embedding.position.weight"))
    names = {"attention_norm": "ln_1", "attention.output": "attn.c_proj", "mlp_norm": "ln_2", "mlp.up": "mlp.c_fc"}
    names["mlp.down"] = "mlp.c_proj"

    def conv1d(value: Tensor) -> Tensor:
        """GPT-2's layers hold their weights transposed."""
        return value.mT if value.ndim == 2 else value

    for layer in range(MODEL.num_layers):
        for kind in ("weight", "bias"):
            for our, their in names.items():
                theirs.pop(f"transformer.h.{layer}.{their}.{kind}").copy_(
                    conv1d(ours.pop(f"blocks.{layer}.{our}.{kind}"))
                )
            query = ours.pop(f"blocks.{layer}.attention.qkv.query.{kind}")
            pairs = ours.pop(f"blocks.{layer}.attention.qkv.key_value.{kind}").unflatten(0, (-1, 2, MODEL.head_width))
            fused = torch.cat((query, pairs[:, 0].flatten(0, 1), pairs[:, 1].flatten(0, 1)))
            theirs.pop(f"transformer.h.{layer}.attn.c_attn.{kind}").copy_(conv1d(fused))
    for kind in ("weight", "bias"):
        theirs.pop(f"transformer.ln_f.{kind}").copy_(ours.pop(f"final_norm.{kind}"))
    assert not ours and not theirs, f"weights without a partner: {list(ours)}, {list(theirs)}"


def kept_bytes(trainer: Trainer) -> int:
    """Bytes of storage that one forward keeps for its backward; main weights left out (copies of them count)."""
    weights = {address(p.to_local() if isinstance(p, DTensor) else p) for p in trainer.model.parameters()}
    kept: dict[int, int] = {}

    def pack(x: Tensor) -> Tensor:
        if address(x) not in weights:
            kept[address(x)] = x.untyped_storage().nbytes()
        return x

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x):
        loss = trainer.forward()
    del loss  # lived so long that no storage was given out twice
    return sum(kept.values())


def allocated_bytes(trainer: Trainer, step: int) -> int:
    """The most that one step holds at a time beside weights and optimizer state, as torch's allocator counts it."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profile:
        trainer.train_step(step)
    with tempfile.TemporaryDirectory() as folder:
        trace = os.path.join(folder, "trace.json")
        profile.export_chrome_trace(trace)
        with open(trace) as file:
            events = [event for event in json.load(file)["traceEvents"] if event.get("name") == "[memory]"]
    totals = [event["args"]["Total Allocated"] for event in sorted(events, key=lambda event: event["ts"])]
    return max(totals) - totals[0]


def address(x: Tensor) -> int:
    """Where the storage of a tensor begins."""
    return x.untyped_storage().data_ptr()


def resident_bytes(field: str) -> int:
    """VmRSS (now) or VmHWM (the most so far) of this process."""
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) << 10 for line in status if line.startswith(field))


def answer(**values: float) -> None:
    print(json.dumps(values), file=sys.__stdout__, flush=True)


def main() -> None:
    job = json.loads(sys.argv[1])
    who, world = Contestant(**job["contestant"]), World(**job["world"])
    torch.set_num_threads(job["threads"])
    start = {"megalith": megalith_trainer, "transformers": transformers_trainer}[who.library]
    if who.library == "transformers":
        import transformers.models.gpt2.modeling_gpt2  # noqa: F401  # so that the baseline holds every import
    before = resident_bytes("VmRSS")
    with contextlib.redirect_stdout(sys.stderr), start(who, world, job["micro_batch_size"]) as trainer:
        answer(ready=True)
        for step, order in enumerate(sys.stdin, start=1):
            if order.strip() == "finish":
                peak = resident_bytes("VmHWM") - before
                allocated = allocated_bytes(trainer, step)
                answer(peak_bytes=peak, allocated_bytes=allocated, kept_bytes=kept_bytes(trainer))
                break
            wall, cpu = time.perf_counter(), time.process_time()
            loss = trainer.train_step(step)
            answer(loss=loss, seconds=time.perf_counter() - wall, cpu_seconds=time.process_time() - cpu)
    sys.stdout.flush()
    os._exit(0)  # the order came from a parent that has all it needs; tearing gloo down takes a second


if __name__ == "__main__":
    main()
