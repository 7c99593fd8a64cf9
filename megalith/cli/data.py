"""`megalith data`: train a tokenizer, turn text into token files, merge and inspect them, prepare a run's order."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

from megalith.cli.progress import bytes_progress
from megalith.errors import UserError
from megalith.units import format_bytes, format_count

HELP = "Train a tokenizer, turn text into token files (.bin/.idx), merge and inspect them, prepare the order of a run."
EXAMPLE = """
megalith data tokenizer corpus.txt --vocab-size 4096 --output corpus/tokenizer.json
megalith data tokenize corpus.txt --tokenizer corpus/tokenizer.json --output-prefix corpus/train
megalith data inspect corpus/train
megalith data merge corpus/train corpus/train --output-prefix corpus/twice
"""
VERB_EXAMPLES = {
    "tokenizer": "megalith data tokenizer corpus.txt --vocab-size 4096 --output corpus/tokenizer.json",
    "tokenize": "megalith data tokenize corpus.txt --tokenizer corpus/tokenizer.json --output-prefix corpus/train",
    "inspect": "megalith data inspect corpus/train --tokenizer corpus/tokenizer.json --verify",
    "merge": "megalith data merge corpus/train corpus/more --output-prefix corpus/all",
    "prepare-index": "megalith data prepare-index recipe.yaml train_steps=100",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the sub-verbs."""
    verbs = parser.add_subparsers(dest="data_verb", required=True, metavar="|".join(VERB_EXAMPLES))
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
    tokenize.add_argument("--threads", type=int, default=0, metavar="N", help="encoding threads (default: all cores)")
    tokenize.add_argument("--json", action="store_true", help="print the manifest as JSON")

    inspect = _verb(verbs, "inspect", "Check the index of a token file and show what is in it.", run_inspect)
    inspect.add_argument("prefix", help="path of the token file without .bin or .idx")
    inspect.add_argument(
        "--tokenizer", type=Path, help="check that it made the file, and show the first tokens as text"
    )
    inspect.add_argument(
        "--verify",
        action="store_true",
        help="read all tokens: each in the vocabulary, all as they were written",
    )
    inspect.add_argument("--first-tokens", type=int, default=16, help="tokens to show (default 16)")
    inspect.add_argument("--json", action="store_true", help="print JSON")

    merge = _verb(verbs, "merge", "Lay token files end to end into a new one.", run_merge)
    merge.add_argument("prefixes", nargs="+", metavar="PREFIX", help="path of a token file without .bin or .idx")
    merge.add_argument("--output-prefix", type=Path, required=True, help="path of the output; nothing is replaced")

    summary = "Build the order of a run's samples ahead, so that training starts at once."
    prepare = _verb(verbs, "prepare-index", summary, run_prepare_index)
    prepare.add_argument("recipe", metavar="RECIPE", help="YAML file that describes the run")
    prepare.add_argument(
        "overrides", metavar="key=value", nargs="*", default=[], help="put a value in, such as train_steps=100"
    )
    prepare.add_argument("--json", action="store_true", help="print JSON")


def run(args: argparse.Namespace) -> int:
    """Run the sub-verb that was chosen."""
    return args.data_function(args)


def run_tokenizer(args: argparse.Namespace) -> int:
    """Train and write a tokenizer."""
    from megalith.tokens.bpe import train_bpe
    from megalith.tokens.documents import check_files

    output = args.output / "tokenizer.json" if args.output.is_dir() else args.output
    with bytes_progress("reading", check_files(args.sources), then="merging") as on_bytes:
        size = train_bpe(_reader(args).read(args.sources, on_bytes), args.vocab_size, output)
    short = f", fewer than {args.vocab_size}: the text has no more pairs to merge" if size < args.vocab_size else ""
    print(f"{output}: {size} tokens{short}")
    return 0


def run_tokenize(args: argparse.Namespace) -> int:
    """Write a token file and its manifest."""
    from megalith.tokens.corpus import tokenize_files
    from megalith.tokens.documents import check_files
    from megalith.tokens.tokenizer import Tokenizer

    if args.threads < 0:
        raise UserError(f"--threads {args.threads} is negative; give 1 or more, or 0 for all cores")
    total, reader = check_files(args.sources), _reader(args)
    tokenizer = Tokenizer.open(args.tokenizer)
    with bytes_progress("tokenizing", total) as on_bytes:
        manifest = tokenize_files(
            args.sources, tokenizer, args.output_prefix, reader, args.append_eod, args.threads or None, on_bytes
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
    from megalith.tokens.manifest import check_manifest, check_tokens, read_manifest
    from megalith.tokens.tokenizer import Tokenizer

    if args.first_tokens < 0:
        raise UserError(f"--first-tokens {args.first_tokens} is negative; give 0 or more")
    tokens = IndexedTokens(args.prefix)
    tokens.verify()
    tokenizer = Tokenizer.open(args.tokenizer) if args.tokenizer else None
    manifest = check_manifest(args.prefix, tokenizer) if tokenizer else read_manifest(args.prefix)
    if args.verify:
        check_tokens(tokens, manifest, tokenizer.vocab_size if tokenizer else None)
    facts = {
        "documents": tokens.num_documents,
        "sequences": tokens.num_sequences,
        "tokens": tokens.num_tokens,
        "dtype": tokens.dtype.name,
        "tokens_per_sequence": round(tokens.num_tokens / tokens.num_sequences, 1) if tokens.num_sequences else 0,
        "longest_sequence": int(tokens.lengths.max()) if tokens.num_sequences else 0,
        "vocab_size": manifest.vocab_size if manifest else None,
        "tokenizer_digest": manifest.tokenizer_digest if manifest else None,
        "sources": [f"{source.path} ({source.bytes} bytes)" for source in manifest.sources] if manifest else None,
        "verified": args.verify,
        "first_tokens": tokens.first(args.first_tokens).tolist(),
    }
    if tokenizer:
        facts["first_text"] = tokenizer.decode(facts["first_tokens"])
    if args.json:
        print(json.dumps(facts, indent=2))
        return 0
    for name, value in facts.items():
        print(f"{name.replace('_', ' '):<20} {_shown(name, value)}")
    return 0


def run_merge(args: argparse.Namespace) -> int:
    """Merge token files."""
    from megalith.tokens.indexed import IndexedTokens
    from megalith.tokens.merge import merge_files

    parts = [IndexedTokens(prefix) for prefix in args.prefixes]
    with bytes_progress("merging", sum(part.num_tokens * part.dtype.itemsize for part in parts)) as on_bytes:
        merged = merge_files(args.prefixes, args.output_prefix, on_bytes)
    print(
        f"{args.output_prefix}.bin/.idx: {format_count(merged.num_documents)} documents, "
        f"{format_count(merged.num_tokens)} tokens as {merged.dtype.name}"
    )
    return 0


def run_prepare_index(args: argparse.Namespace) -> int:
    """Fill the index cache for a run and say how often it will go through each source."""
    from megalith.config.reader import read_recipe
    from megalith.data.sources import describe, epochs_of, prepare

    recipe = read_recipe(args.recipe, args.overrides)
    data = prepare(recipe)
    sources, builds = epochs_of(recipe, data), sum(cache.builds for cache in data.caches)
    if args.json:
        folders = [str(cache.folder) for cache in data.caches]
        print(json.dumps({"sources": sources, "caches": folders, "builds": builds}, indent=2))
        return 0
    for source in sources:
        print(describe(source))
    for cache in data.caches:
        print(f"{cache.folder}: {cache.builds} indices built, the others were there")
    return 0


def _shown(name: str, value: object) -> str:
    if value is None:
        return "unknown (no manifest)"
    if name == "sources" and isinstance(value, list):
        return ", ".join(value[:3]) + (f" and {len(value) - 3} more" if len(value) > 3 else "")
    return repr(value) if name == "first_text" else str(value)


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
