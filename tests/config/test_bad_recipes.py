"""Bad recipes: each is refused fast, with every fault of it in one pass, and the way out that a fault offers works."""

from __future__ import annotations

import subprocess
import sys
import time
from dataclasses import dataclass

import pytest

from megalith.config.reader import parse_recipe
from megalith.errors import UserError

GOOD = """
model: gpt-tiny  # 2 layers, hidden size 64, 4 heads, vocabulary 256, at most 64 tokens
data: {prefix: data/text}
batch: {seq_len: 64, micro_batch_size: 2, global_batch_size: 16}
train_steps: 100
output: runs/test
"""


@dataclass(frozen=True)
class Bad:
    """A bad recipe: GOOD with `overrides`, or with text `old` replaced by `new`, on `world_size` processes.

    `says`: one entry per fault, its parts between bars; all of them stand in one line of the message. `mended`: the
    overrides that take the place of the bad ones, each as offered by the message.
    """

    overrides: str
    says: tuple[str, ...]
    mended: str = ""
    world_size: int = 1
    mended_world_size: int = 0
    old: str = ""
    new: str = ""


def field(path: str, value: object, says: str, way_out: object, also: str = "", world_size: int = 1) -> Bad:
    """One field at fault, mended by giving it the value `way_out`; `also`: further overrides of the row."""
    says = f"{path.split('.')[-1]}={value}|{says}|{way_out}"
    return Bad(f"{also} {path}={value}", (says,), f"{also} {path}={way_out}", world_size)


def text(old: str, new: str, *says: str, overrides: str = "") -> Bad:
    """A fault in the text of the recipe, mended by GOOD."""
    return Bad(overrides, says, old=old, new=new)


TENSOR = "layout.tensor_parallel_size"
NO_VALIDATION = "validation.interval_steps=5"
SEQUENCE = "layout.sequence_parallel=true layout.tensor_parallel_size=2"
WSD = "schedule.name=wsd schedule.warmup_steps=10"
SELECTIVE = "recompute=selective"

SIZES = [
    field("model.num_layers", 0, "must be at least 1", 1),
    field("model.hidden_size", -64, "must be at least 1", 64),
    field("model.num_attention_heads", 0, "must be at least 1", 1),
    field("model.num_kv_heads", 0, "must be at least 1", 1),
    field("model.vocab_size", 0, "must be at least 1", 1),
    field("batch.micro_batch_size", 0, "must be at least 1", 1),
    field("train_steps", 0, "must be at least 1", 1),
    field(TENSOR, 0, "must be at least 1", 1),
    field("checkpoint.keep", 0, "must be at least 1", 1),
    field("log.interval_steps", -5, "must be at least 1", 5),
    field("seed", -1, "must be at least 0", 1),
    field("seed", 2**63, "must be a whole number of 64 bits", 1234),
    field("train_steps", 10**30, "must be a whole number", 1000),
]
NUMBERS = [
    field("optimizer.lr", "nan", "must be a finite number above 0", 0.0003),
    field("optimizer.lr", "inf", "must be a finite number above 0", 0.0003),
    field("optimizer.lr", -0.001, "must be above 0", 0.001),
    field("optimizer.beta2", 1.0, "must be at least 0 and below 1", 0.95),
    field("optimizer.eps", 0.0, "must be above 0", 1e-08),
    field("optimizer.clip_grad_norm", -1.0, "must be at least 0", 1.0),
    field("model.dropout", 1.0, "must be at least 0 and below 1", 0.1),
    field("model.dropout", -0.5, "must be at least 0 and below 1", 0.5),
    field("model.norm_eps", -1e-05, "must be above 0", 1e-05),
    field("schedule.min_lr_ratio", 10.0, "must be at least 0 and at most 1", 1),
    field("optimizer.momentum", 0.9, "is for sgd alone", 0),
]
MODEL = [
    field("model.hidden_size", 62, "is not a multiple of num_attention_heads=4", 60),
    field("model.hidden_size", 62, "is not a multiple of num_attention_heads=4", 64),
    field("model.num_kv_heads", 3, "must divide num_attention_heads=4|1, 2 or 4", 2),
    field("model.num_kv_heads", 8, "must divide num_attention_heads=4|1, 2 or 4", 4),
    field("model.rope_fraction", 0.1, "rotates no pair of head_dim=16", 0.125, "model=llama-tiny"),
    field("model.rope_fraction", 2.0, "must be above 0 and at most 1", 1, "model=llama-tiny"),
    Bad(
        "model.rope_scaling.factor=4",
        ("model.rope_scaling is for position=rope, and position=learned|null",),
        "model.rope_scaling=null",
    ),
    field("model.rope_scaling.high_freq_factor", 0.5, "low_freq_factor=1.0 must be below", 4.0, "model=llama-tiny"),
    field("batch.seq_len", 65, "must be at most max_seq_len=64", 64),
    field("batch.seq_len", 99, "must be at most max_seq_len=64", 64, "model=llama-tiny"),
    field("model.attention_dropout", 0.1, "cannot be had with attention=sdpa|attention=unfused", 0),
]
LAYOUT = [
    field(
        TENSOR,
        4,
        "num_attention_heads=6 cannot be split over|choose 1 or 2",
        2,
        "model.num_attention_heads=6 model.head_dim=8",
        world_size=4,
    ),
    field("model.vocab_size", 5, "leaves a rank without a token|tensor_parallel_size=1 or 2", 7, f"{TENSOR}=4", 4),
    field(TENSOR, 4, "vocab_size=5 leaves a rank without a token|=7", 2, "model.vocab_size=5", 4),
    field(
        TENSOR,
        4,
        "ffn_hidden_size=250 cannot be split over|choose 1 or 2",
        2,
        "model.ffn_hidden_size=250",
        world_size=4,
    ),
    field(
        TENSOR,
        4,
        "ffn_hidden_size=10 (2 blocks of 5 gate rows) cannot be split over|choose 1 or 2",
        2,
        "model=llama-tiny model.ffn_hidden_size=10",
        world_size=4,
    ),
    field(
        TENSOR, 4, "world_size=6 is not a multiple of|4 or 8 processes", 2, "batch.global_batch_size=12", world_size=6
    ),
    Bad(
        f"{TENSOR}=2",
        ("world_size=3|not a multiple of tensor_parallel_size=2|start 2 or 4 processes",),
        f"{TENSOR}=2",
        world_size=3,
        mended_world_size=4,
    ),
    Bad("", ("world_size=0|must be at least 1|choose 1",), world_size=0, mended_world_size=1),
    field("layout.sequence_parallel", "true", "needs tensor_parallel_size above 1", "false"),
    field(
        "batch.seq_len",
        31,
        "micro_batch_size=1|31 tokens|over tensor_parallel_size=2",
        30,
        f"{SEQUENCE} batch.micro_batch_size=1",
        world_size=2,
    ),
    field("batch.global_batch_size", 20, "micro_batch_size=2 x data_parallel_size=4|16 or 24", 24, world_size=4),
    field("batch.global_batch_size", 3, "multiple of micro_batch_size=2|2 or 4", 4),
    field("batch.global_batch_size", 4, "micro_batch_size=2 x data_parallel_size=8", 16, world_size=8),
]
RUN = [
    field("schedule.warmup_steps", 100, "must be below train_steps=100", 99),
    field("schedule.decay_steps", 0, "between 1 and train_steps - warmup_steps = 90", 9, WSD),
    field("schedule.decay_steps", 95, "between 1 and train_steps - warmup_steps = 90", 90, WSD),
    field("data.split", "99,-1,2", "three finite numbers of at least 0", "99,0,2"),
    field("data.split", "0,0,0", "first number must be above 0", "98,2,0"),
    field("data.split", "a,b,c", "three finite numbers", "98,2,0"),
    field("data.split", "nan,1,1", "three finite numbers", "98,2,0"),
    field("data.split", "0.999,1e-3,0", "written plainly", "0.999,0.001,0"),
    field("data.split", "90,10", "must hold three", "90,10,0"),
    field("data.split", "100,0,0", "validation.interval_steps=5 needs data", "98,2,0", NO_VALIDATION),
    field("recompute.num_layers", 3, "between 1 and model.num_layers=2", 2, "recompute=full"),
    field("recompute.num_layers", 0, "at least 1", 1, "recompute=full recompute.method=block"),
    field("recompute.modules", "[]", "names none", "[core_attn]", SELECTIVE),
    Bad(
        f"{SELECTIVE} recompute.modules=[norm,norm]",
        ("modules=[norm, norm] names a module twice|choose|[norm]",),
        f"{SELECTIVE} recompute.modules=[norm]",
    ),
    Bad(
        f"{SELECTIVE} recompute.modules=[mlp_act] compile=true",
        ("modules=[mlp_act]|compile=true|compile=false",),
        f"{SELECTIVE} recompute.modules=[mlp_act] compile=false",
    ),
    Bad("output=null", ("output=''|must name a folder|output=runs/first",), "output=runs/first"),
    Bad("data.prefix=~nobody/x", ("data.prefix=~nobody/x|only a shell expands|~nobody/x",), "data.prefix=x"),
    Bad("output=", ("output=''|must name a folder|output=runs/first",), "output=runs/first"),
    Bad("data.prefix=", ("data.prefix is missing|data.prefix=data/text",), "data.prefix=data/text"),
]
TWO_PARTS = "[{prefix: a, weight: 1}, {prefix: b, weight: 1}]"
DATA = [
    text("{prefix: data/text}", "{split: '98,2,0'}", "data.prefix is missing, and there is no data.blend|prefix=data"),
    text("{prefix: data/text}", f"{{prefix: data/text, blend: {TWO_PARTS}}}", "data.prefix=data/text and data.blend"),
    Bad(
        'data.blend=[{"prefix":a,"weight":1}]',
        ("data.prefix=data/text and data.blend are both given|data.prefix=null|data.blend=[]",),
        'data.prefix=null data.blend=[{"prefix":a,"weight":1}]',
    ),
    text("{prefix: data/text}", f"{{blend: {TWO_PARTS.replace('b,', 'a,')}}}", "names a twice|weight: 2"),
    text(
        "{prefix: data/text}", f"{{blend: {TWO_PARTS.replace('b,', ',')}}}", "a part with prefix=''|prefix: data/text"
    ),
    text("{prefix: data/text}", f"{{blend: {TWO_PARTS.replace('1', '-3', 1)}}}", "weight=-3.0 of a|weight: 3"),
    text("{prefix: data/text}", f"{{blend: {TWO_PARTS.replace('1', 'nan', 1)}}}", "weight=nan of a|weight: 1"),
    text("{prefix: data/text}", f"{{blend: {TWO_PARTS.replace('1', '0')}}}", "all weights are 0|weight: 1"),
    text("{prefix: data/text}", "{blend: [{prefix: a}]}", "data.blend[0].weight is missing|data.blend[0].weight=0.5"),
    text("{prefix: data/text}", "{blend: [{prefx: a, weight: 1}]}", "prefx|data.blend[0].prefix", "prefix is missing"),
    text("{prefix: data/text}", "{blend: [a, b]}", "data.blend[0]=a must hold fields", "data.blend[1]=b must hold"),
    text("text}", "text, validation: [{name: a/b, prefix: v}]}", "name='a/b'|letters, digits|name: held_out"),
    text("text}", "text, validation: [{name: v, prefix: ''}]}", "prefix='' of v|prefix: data/v"),
    text(
        "text}",
        "text, validation: [{name: v, prefix: a}, {name: v, prefix: b}]}",
        "name=v is given twice|name: v_2",
    ),
    field("data.num_workers", -1, "must be at least 0", 1),
    field("data.order", "epoch", "must be one of epochs, megatron", "epochs"),
]
TYPES = [
    field("precision", "fp16", "must be one of fp32, bf16", "bf16"),
    field("layout.sharding", "zero3", "must be one of none, optimizer, full", "none"),
    field("train_steps", "1e2", "must be a whole number", 100),
    field("train_steps", "2.5", "must be a whole number", 2),
    field("train_steps", "1,000", "must be a whole number", 1000),
    field("train_steps", "many", "must be a whole number", 1000),
    field("optimizer.lr", "fast", "must be a number", 0.0003),
    field("compile", "off", "must be true or false", "false"),
    field("compile", "on", "must be true or false", "true"),
    field("recompute.modules", "core_attn", "must be a list", "[core_attn]"),
    Bad(
        "recompute.modules=[core_atn]",
        ("modules[0]=core_atn|must be one of|core_attn",),
        "recompute.modules=[core_attn]",
    ),
    Bad("layout=2", (f"layout=2 must hold fields|{TENSOR}=1",), f"{TENSOR}=1"),
    Bad("train_steps=[1]", ("train_steps=['1']|must be a whole number|train_steps|1000",), "train_steps=1000"),
    Bad("output=[a", ("output=[a|valid YAML|close its brackets",), "output=a"),
    Bad("lr", ("lr is not an override|write key=value|optimizer.lr=1e-4",), "optimizer.lr=1e-4"),
]
NAMES = [
    Bad("model=gpt3-126", ("preset gpt3-126 does not exist|gpt3-126m",), "model=gpt3-126m"),
    Bad("optimizer.lerning_rate=1", ("optimizer.lerning_rate|not a known key",), ""),
    Bad("lr=1e-3", ("lr is not a known key|did you mean optimizer.lr",), "optimizer.lr=1e-3"),
    Bad("model.hiden_size=64", ("model.hiden_size|not a known key|model.hidden_size",), "model.hidden_size=64"),
    text("train_steps", "train_step", "train_step is not a known key|train_steps", "train_steps is missing|=1000"),
    text("micro_batch_size: 2, ", "", "batch.micro_batch_size is missing|batch.micro_batch_size=1"),
    text("model: gpt-tiny", "model:", "model is missing|model=gpt3-126m"),
    text("data: {prefix: data/text}", "", "data.prefix is missing|data.prefix=data/text"),
    text("output", "train_steps: 9\noutput", "train_steps is given twice, in lines 5 and 6|remove one"),
    text("seq_len: 64,", "seq_len: 64, seq_len: 32,", "seq_len is given twice, in lines 4 and 4|remove one"),
]
MANY = [
    Bad(
        f"{TENSOR}=4 model.num_attention_heads=6 model.head_dim=8 batch.seq_len=128 optimizer.lr=nan seed=-1 "
        "precision=fp8 data.split=1,2 schedule.warmup_steps=200 layout.sharding=ful dta.prefix=x",
        (
            "num_attention_heads=6 cannot be split over tensor_parallel_size=4; choose 1 or 2",
            "seq_len=128|max_seq_len=64",
            "optimizer.lr=nan|finite",
            "seed=-1|at least 0",
            "precision=fp8|one of fp32, bf16",
            "data.split=1,2|three|1,2,0",
            "warmup_steps=200|train_steps=100",
            "layout.sharding=ful|full",
            "dta is not a known key|data",
        ),
        f"{TENSOR}=2 model.num_attention_heads=6 model.head_dim=8 batch.seq_len=64 optimizer.lr=0.0003 seed=1 "
        "precision=bf16 data.split=1,2,0 schedule.warmup_steps=99 layout.sharding=full",
        world_size=4,
    ),
    text(
        "gpt-tiny",
        "{preset: gpt-tinny, num_layers: two}",
        "gpt-tinny|gpt-tiny",
        "model.num_layers=two|whole number",
        "train_steps=0|at least 1",
        overrides="train_steps=0",
    ),
]
ROWS = [*SIZES, *NUMBERS, *MODEL, *LAYOUT, *RUN, *DATA, *TYPES, *NAMES, *MANY]


def refusal(row: Bad) -> list[str]:
    """The fault lines of the refusal of `row`."""
    with pytest.raises(UserError) as refused:
        parse_recipe(GOOD.replace(row.old, row.new) if row.old else GOOD, row.overrides.split(), row.world_size)
    return [line for line in str(refused.value).splitlines() if line.startswith("  - ")]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: (row.overrides or row.new or f"world={row.world_size}").strip())
def test_refused_with_every_fault_and_the_way_out_works(row: Bad) -> None:
    started = time.process_time()
    lines = refusal(row)
    assert time.process_time() - started < 1.0
    assert len(lines) == len(row.says), "\n".join(lines)
    for says in row.says:
        assert any(all(part in line for part in says.split("|")) for line in lines), (says, lines)
    bad_keys = {override.partition("=")[0] for override in row.overrides.split()}
    for override in set(row.mended.split()) - set(row.overrides.split()):
        key, _, value = override.partition("=")
        offered = value.strip("[]") if key in bad_keys else key
        assert any(offered in line for line in lines), f"{override} is not offered in {lines}"
    parse_recipe(GOOD, row.mended.split(), row.mended_world_size or row.world_size)


def test_the_table_is_long_enough() -> None:
    assert len(ROWS) >= 40


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("", "holds no `key: value` lines; it must give model, data, batch, train_steps, output"),
        ("- a\n- b", "holds no `key: value` lines"),
        ("model: [gpt", "not valid YAML"),
        ("model: \x00", "not valid YAML"),
        ("a: &a [*a]", "not valid YAML"),
        ("? [1, 2]\n: 3", "not valid YAML"),
        ("[" * 1500, "not valid YAML"),
    ],
)
def test_text_that_is_no_recipe(content: str, says: str) -> None:
    with pytest.raises(UserError) as refused:
        parse_recipe(content, [])
    assert says in str(refused.value)


def test_tags_run_nothing(tmp_path) -> None:
    mark = tmp_path / "mark"
    content = GOOD.replace("runs/test", f"!!python/object/apply:pathlib.Path.touch [!!python/name:x, '{mark}']")
    with pytest.raises(UserError, match="output="):
        parse_recipe(content, [])
    assert not mark.exists()


@pytest.mark.parametrize("command", ["api", "train"])
def test_refused_before_torch_is_imported(command: str, tmp_path) -> None:
    """A fresh interpreter that refuses a bad recipe never loads torch or numpy."""
    recipe = tmp_path / "bad.yaml"
    recipe.write_text(GOOD)
    arguments = [str(recipe), "optimizer.lr=nan", "layout.tensor_parallel_size=3"]
    call = {
        "api": f"reader.read_recipe({arguments[0]!r}, {arguments[1:]!r}, 1)",
        "train": f"sys.exit(main.main(['train', *{arguments!r}]))",
    }[command]
    program = f"""
import atexit, sys
atexit.register(lambda: print("loaded:", sorted({{"torch", "numpy"}} & set(sys.modules))))
from megalith.config import reader
from megalith.cli import main
{call}
"""
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert ran.returncode == (2 if command == "train" else 1)
    assert "optimizer.lr=nan" in ran.stderr and "tensor_parallel_size=3" in ran.stderr
    assert ran.stdout.strip() == "loaded: []"
    assert ("Traceback" in ran.stderr) == (command == "api")
