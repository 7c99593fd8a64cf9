"""`megalith demo`: the whole way from real text to a trained model that continues a prompt, in commands to copy."""

from __future__ import annotations

import argparse
import json
import shlex
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from importlib.resources import files
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING

from megalith.config.reader import read_recipe, to_yaml
from megalith.config.recipe import Recipe
from megalith.errors import UserError
from megalith.files import atomic_writer
from megalith.units import format_bytes, format_count, format_duration

if TYPE_CHECKING:
    import numpy as np

    from megalith.tokens.indexed import IndexedTokens

HELP = (
    "Train a tokenizer and a small GPT on Shakespeare with two processes that share every layer, compare it with a "
    "bigram model on plays that it has not seen, draw its loss curve and continue a prompt. The same command continues "
    "a demo that was stopped."
)
EXAMPLE = "megalith demo --output runs/demo"
RECIPE = "gpt-demo_2m_laptop.yaml"
NUM_PROCESSES = 2
VALIDATION = ("as_you_like_it",)
HELD_OUT = ("macbeth", "twelfth_night")  # scored once, when all is trained
PROMPT = "ROMEO.\nShall I hear more, or shall I speak"
MARGIN = 0.10  # how far below the bigram model the GPT must end


@dataclass(frozen=True)
class Scores:
    """Held-out text in bits per byte, by both models; the bigram's validation loss in nats per token for the plot."""

    model_bits_per_byte: float
    bigram_bits_per_byte: float
    held_out_bytes: int
    held_out_tokens: int
    bigram_validation_loss: float

    @property
    def below(self) -> float:
        """By which share the model is below the bigram."""
        return 1 - self.model_bits_per_byte / self.bigram_bits_per_byte


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "overrides", metavar="key=value", nargs="*", default=[], help="change the recipe, as in train_steps=20"
    )
    parser.add_argument("--output", type=Path, default=Path("runs/demo"), help="folder to fill (default runs/demo)")


def run(args: argparse.Namespace) -> int:
    """All six parts; the exit code of the first part that fails, else 0."""
    started, output = perf_counter(), args.output
    recipe = make_recipe(output, args.overrides)
    heading(1, "Text: 42 works of William Shakespeare, public domain")
    write_texts(output / "data")
    heading(2, "Tokens: a byte-level vocabulary learned from the training works")
    code = make_tokens(recipe, output / "data")
    heading(3, f"Training: {NUM_PROCESSES} processes share every layer (tensor and sequence parallel)")
    code = code or megalith("train", str(output / "recipe.yaml"), "--nproc", str(NUM_PROCESSES))
    if code:
        return code
    heading(4, f"Score: {' and '.join(map(title_of, HELD_OUT))}, which neither model has seen")
    scores = score(recipe)
    show(scores)
    heading(5, "Loss curve")
    draw(recipe, scores)
    heading(6, "Generation")
    code = megalith("generate", str(output), "--prompt", PROMPT, "--max-new-tokens", "100", "--seed", "1")
    with atomic_writer(output / "scores.json") as file:
        file.write(json.dumps({**asdict(scores), "below": scores.below}, indent=2).encode() + b"\n")
    print(f"\nDone in {format_duration(perf_counter() - started)}. All of it is in {output}/")
    return code


def megalith(*arguments: str) -> int:
    """Run a verb as the command line would, after showing it; returns its exit code."""
    from megalith.cli.main import run_verb

    print("$ megalith", " ".join(arguments[:1]), shlex.join(arguments[1:]), flush=True)
    return run_verb(arguments[0], arguments[1:])


def heading(number: int, text: str) -> None:
    print(f"\n{number}. {text}\n", flush=True)


def title_of(work: str) -> str:
    return work.replace("_", " ").title()


def make_recipe(output: Path, overrides: Sequence[str]) -> Recipe:
    """The demo's recipe for `output`, checked, and written there as recipe.yaml."""
    places = (f"output={output}", f"data.prefix={output}/data/text", f"data.tokenizer={output}/data/tokenizer.json")
    source = Path(str(files("megalith") / "demo" / RECIPE))
    recipe = read_recipe(source, [*places, *overrides], NUM_PROCESSES)
    with atomic_writer(output / "recipe.yaml") as file:
        file.write(to_yaml(recipe).encode())
    return recipe


def write_texts(folder: Path) -> None:
    """Write train.jsonl, validation.jsonl and held_out.jsonl: one work a line. Whole works are kept apart."""
    source = Path(str(files("megalith") / "demo" / "shakespeare"))
    works = {path.stem: path.read_text(encoding="utf-8") for path in sorted(source.glob("*.txt"))}
    apart = {"validation": VALIDATION, "held_out": HELD_OUT}
    parts = {"train": tuple(work for work in works if work not in VALIDATION + HELD_OUT), **apart}
    for part, names in parts.items():
        with atomic_writer(folder / f"{part}.jsonl") as file:
            file.writelines(json.dumps({"text": works[name]}).encode() + b"\n" for name in names)
        size = format_bytes(sum(len(works[name].encode()) for name in names))
        listed = ", ".join(map(title_of, names)) if part in apart else f"{len(names)} works"
        print(f"{part.replace('_', '-'):<11} {size:>8}  {listed}")


def make_tokens(recipe: Recipe, folder: Path) -> int:
    """Train the tokenizer on the training works alone and tokenize all three parts into one token file."""
    tokenizer, size = str(folder / "tokenizer.json"), str(recipe.model.vocab_size)
    code = megalith(
        "data", "tokenizer", str(folder / "train.jsonl"), "--vocab-size", size, "--output", tokenizer
    )  # fmt: skip
    texts = [str(folder / f"{part}.jsonl") for part in ("train", "validation", "held_out")]
    return code or megalith(
        "data", "tokenize", *texts, "--tokenizer", tokenizer, "--output-prefix", str(folder / "text")
    )  # fmt: skip


def score(recipe: Recipe) -> Scores:
    """Both models on the same held-out tokens; the bigram is counted and tuned on the training split alone."""
    from megalith.data.splits import split_ranges
    from megalith.opening.model import open_model
    from megalith.scoring.bigram import fit_bigram
    from megalith.scoring.held_out import bits_per_byte, nats
    from megalith.tokens.indexed import IndexedTokens

    opened, tokens = open_model(recipe.output), IndexedTokens(Path(recipe.output) / "data" / "text")
    train, validation, held_out = (
        stream(tokens, sequences, opened.tokenizer.end_of_document)
        for sequences in split_ranges(recipe.data.split, len(tokens))
    )
    bigram = fit_bigram(train, opened.tokenizer.vocab_size)
    num_bytes = opened.tokenizer.byte_length(held_out)
    return Scores(
        model_bits_per_byte=bits_per_byte(nats(opened.model, held_out, recipe.batch.seq_len), num_bytes),
        bigram_bits_per_byte=bits_per_byte(bigram.nats(held_out), num_bytes),
        held_out_bytes=num_bytes,
        held_out_tokens=len(held_out) - 1,
        bigram_validation_loss=bigram.nats(validation) / (len(validation) - 1),
    )


def stream(tokens: IndexedTokens, sequences: range, end_of_document: int) -> np.ndarray:
    """Documents end to end, int64, after one end of a document, so that the first token too follows something."""
    import numpy as np

    return np.concatenate([[end_of_document], *(tokens[i] for i in sequences)]).astype(np.int64)


def show(scores: Scores) -> None:
    print(f"{format_bytes(scores.held_out_bytes)} of text, {format_count(scores.held_out_tokens)} tokens")
    print(f"interpolated bigram model  {scores.bigram_bits_per_byte:.3f} bits per byte")
    print(f"the trained GPT            {scores.model_bits_per_byte:.3f} bits per byte, {scores.below:.1%} below")
    if scores.below < MARGIN:
        print(f"warning: less than {MARGIN:.0%} below; train for more steps")


def draw(recipe: Recipe, scores: Scores) -> None:
    """The loss curve with the bigram's level on the same validation play; without matplotlib a line that says so."""
    from megalith.report.plot import plot_loss

    level = ("bigram model on the validation play", scores.bigram_validation_loss)
    try:
        print(plot_loss(Path(recipe.output), "A small GPT learns Shakespeare", [level]))
    except UserError as error:  # a picture less is no reason to stop
        print(f"note: no loss curve: {error}")
