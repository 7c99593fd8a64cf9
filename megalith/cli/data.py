"""`megalith data`: train a tokenizer, turn text into token files, look into token files."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path

from megalith.errors import UserError
from megalith.units import format_bytes, format_count

HELP = "Train a tokenizer, turn text into token files (.bin/.idx), look into token files."
EXAMPLE = """
megalith data tokenizer corpus.txt --vocab-size 4096 --output corpus/tokenizer.json
megalith data tokenize corpus.txt --tokenizer corpus/tokenizer.json --output-prefix corpus/train
megalith data inspect corpus/train
"""
VERB_EXAMPLES = {
    "tokenizer": "megalith data tokenizer corpus.txt --vocab-size 4096 --output corpus/tokenizer.json",
    "tokenize": "megalith data tokenize corpus.txt --tokenizer corpus/tokenizer.json --output-prefix corpus/train",
    "inspect": "megalith data inspect corpus/train --tokenizer corpus/tokenizer.json",
}
_PROGRESS_STEP_BYTES = 1 << 18  # a redraw costs more than reading some lines


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the sub-verbs tokenizer, tokenize and inspect."""
    verbs = parser.add_subparsers(dest="data_verb", required=True, metavar="tokenizer|tokenize|inspect")
    tokenizer = _verb(verbs, "tokenizer", "Train a byte-level BPE tokenizer from text.", run_tokenizer)
    _add_source_arguments(tokenizer)
    tokenizer.add_argument("--vocab-size", type=int, required=True, help="tokens, with 256 bytes and <|endoftext|>")
    tokenizer.add_argument("--output", type=Path, required=True, help="file to write, or a folder for tokenizer.json")

    tokenize = _verb(verbs, "tokenize", "Turn text or JSONL into PREFIX.bin, PREFIX.idx and PREFIX.json.", run_tokenize)
    _add_source_arguments(tokenize)
    tokenize.add_argument("--tokenizer", type=Path, required=True, help="tokenizer.json, or a folder that holds it")
    tokenize.add_argument("--output-prefix", type=Path, required=True, help="path of the output without its ending")
    tokenize.add_argument(
        "--append-eod", action=argparse.BooleanOptionalAction, default=True, help="end documents with the token for it"
    )
    tokenize.add_argument("--json", action="store_true", help="print the manifest as JSON")

    inspect = _verb(verbs, "inspect", "Check a token file and show what is in it.", run_inspect)
    inspect.add_argument("prefix", help="path of the token file without .bin or .idx")
    inspect.add_argument(
        "--tokenizer", type=Path, help="check that it made the file, and show the first tokens as text"
    )
    inspect.add_argument("--first-tokens", type=int, default=16, help="tokens to show (default 16)")
    inspect.add_argument("--json", action="store_true", help="print JSON")


def run(args: argparse.Namespace) -> int:
    """Run the sub-verb that was chosen."""
    return args.data_function(args)


def run_tokenizer(args: argparse.Namespace) -> int:
    """Train and write a tokenizer."""
    from megalith.tokens.bpe import train_bpe
    from megalith.tokens.documents import check_files

    output = args.output / "tokenizer.json" if args.output.is_dir() else args.output
    with _progress("reading", check_files(args.sources), then="merging") as on_bytes:
        size = train_bpe(_reader(args).read(args.sources, on_bytes), args.vocab_size, output)
    short = f", fewer than {args.vocab_size}: the text has no more pairs to merge" if size < args.vocab_size else ""
    print(f"{output}: {size} tokens{short}")
    return 0


def run_tokenize(args: argparse.Namespace) -> int:
    """Write a token file and its manifest."""
    from megalith.tokens.corpus import tokenize_files
    from megalith.tokens.documents import check_files
    from megalith.tokens.tokenizer import Tokenizer

    total = check_files(args.sources)
    tokenizer = Tokenizer.open(args.tokenizer)
    with _progress("tokenizing", total) as on_bytes:
        manifest = tokenize_files(
            args.sources, tokenizer, args.output_prefix, _reader(args), append_eod=args.append_eod, on_bytes=on_bytes
        )
    if args.json:
        print(json.dumps(asdict(manifest), indent=2))
        return 0
    ratio = manifest.text_bytes / manifest.tokens if manifest.tokens else 0.0
    print(
        f"{args.output_prefix}.bin/.idx: {format_count(manifest.documents)} documents, {format_count(manifest.tokens)} "
        f"tokens as {manifest.dtype}, {format_bytes(manifest.bin_bytes)}, {ratio:.2f} bytes of text per token"
    )
    return 0


def run_inspect(args: argparse.Namespace) -> int:
    """Verify a token file and print its counts and first tokens."""
    from megalith.tokens.indexed import IndexedTokens
    from megalith.tokens.manifest import check_manifest, read_manifest
    from megalith.tokens.tokenizer import Tokenizer

    if args.first_tokens < 0:
        raise UserError(f"--first-tokens {args.first_tokens} is negative; give 0 or more")
    tokens = IndexedTokens(args.prefix)
    tokens.verify()
    tokenizer = Tokenizer.open(args.tokenizer) if args.tokenizer else None
    manifest = check_manifest(args.prefix, tokenizer) if tokenizer else read_manifest(args.prefix)
    facts = {
        "documents": tokens.num_documents,
        "sequences": tokens.num_sequences,
        "tokens": tokens.num_tokens,
        "dtype": tokens.dtype.name,
        "longest_sequence": int(tokens.lengths.max()) if tokens.num_sequences else 0,
        "vocab_size": manifest.vocab_size if manifest else None,
        "tokenizer_digest": manifest.tokenizer_digest if manifest else None,
        "first_tokens": tokens.first(args.first_tokens).tolist(),
    }
    if tokenizer:
        facts["first_text"] = tokenizer.decode(facts["first_tokens"])
    if args.json:
        print(json.dumps(facts, indent=2))
        return 0
    for name, value in facts.items():
        shown = "unknown (no manifest)" if value is None else repr(value) if name == "first_text" else value
        print(f"{name.replace('_', ' '):<17} {shown}")
    return 0


def _verb(
    verbs: argparse._SubParsersAction, name: str, summary: str, function: Callable[[argparse.Namespace], int]
) -> argparse.ArgumentParser:
    """The parser of one sub-verb, with its example below."""
    parser = verbs.add_parser(name, help=summary, description=summary, epilog=f"example:\n  {VERB_EXAMPLES[name]}")
    parser.set_defaults(data_function=function)
    return parser


def _add_source_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "sources", nargs="+", type=Path, metavar="FILE", help="text (UTF-8), or .jsonl/.ndjson/.json lines"
    )
    parser.add_argument("--json-key", default="text", help="key of the text in JSON lines (default text)")
    parser.add_argument(
        "--split-documents-on-blank-lines",
        type=int,
        default=0,
        metavar="N",
        help="in plain text, N or more blank lines part two documents (default 0: each file is one document)",
    )


def _reader(args: argparse.Namespace):
    from megalith.tokens.documents import DocumentReader

    if args.split_documents_on_blank_lines < 0:
        raise UserError(
            f"--split-documents-on-blank-lines {args.split_documents_on_blank_lines} is negative; give 0 or more"
        )
    return DocumentReader(args.json_key, args.split_documents_on_blank_lines)


@contextmanager
def _progress(label: str, total_bytes: int, then: str | None = None) -> Iterator[Callable[[int], None]]:
    """A bar with rate and time left on standard error; yields what to tell each number of bytes read.

    then: what goes on when all bytes are read.
    """
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TimeRemainingColumn, TransferSpeedColumn

    columns = ("{task.description}", BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())
    console = Console(file=sys.stderr)
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task(label, total=total_bytes)
        read = shown = 0

        def on_bytes(num_bytes: int) -> None:
            nonlocal read, shown
            read += num_bytes
            if read - shown >= _PROGRESS_STEP_BYTES or read >= total_bytes:
                bar.update(task, completed=read, description=then if then and read >= total_bytes else label)
                shown = read

        yield on_bytes
