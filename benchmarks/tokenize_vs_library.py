"""Megabytes of text a second from JSONL to .bin/.idx, beside what the tokenizers library encodes of text in memory.

Turns go round and round in one run: the library's `encode_batch` on the same documents, already in memory and with
nothing done with the result; then `data tokenize` with all that it does: reading and decoding, encoding, checking,
writing, digests. At the end peak memory of a process that tokenizes the text once, and one that has it four times.

    python benchmarks/tokenize_vs_library.py [--rounds 7] [--megabytes 16] [--output benchmarks/results]
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

import tokenizers

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from megalith.tokens.bpe import train_bpe  # noqa: E402
from megalith.tokens.corpus import tokenize_files  # noqa: E402
from megalith.tokens.documents import DocumentReader  # noqa: E402
from megalith.tokens.indexed import IndexedTokens  # noqa: E402
from megalith.tokens.tokenizer import Tokenizer  # noqa: E402

DOCUMENT_CHARACTERS = 3000
LIBRARY_BATCH = 1000  # documents, as its own users hand them over
VOCAB_SIZE = 16_000
PEAK = """
import re, sys
sys.path.insert(0, sys.argv[4])
from pathlib import Path
from megalith.tokens.corpus import tokenize_files
from megalith.tokens.documents import DocumentReader
from megalith.tokens.tokenizer import Tokenizer
folder, sources = Path(sys.argv[1]), [Path(sys.argv[2])] * int(sys.argv[3])
tokenize_files(sources, Tokenizer.open(folder), folder / "peak", DocumentReader())
print(re.search(r"VmHWM:\\s+(\\d+) kB", Path("/proc/self/status").read_text())[1])
"""


def make_documents(megabytes: int) -> list[str]:
    """Pieces of the demo's plays, over and over until there are enough."""
    works = [path.read_text(encoding="utf-8") for path in sorted(ROOT.glob("megalith/demo/shakespeare/*.txt"))]
    once = [work[i : i + DOCUMENT_CHARACTERS] for work in works for i in range(0, len(work), DOCUMENT_CHARACTERS)]
    size = sum(len(document.encode()) for document in once)
    return (once * -(-megabytes * 1_000_000 // size))[: len(once) * megabytes * 1_000_000 // size]


def seconds_of(function: Callable[[], object]) -> tuple[float, float]:
    """Wall seconds, and CPU seconds of all threads."""
    wall, cpu = time.perf_counter(), time.process_time()
    function()
    return time.perf_counter() - wall, time.process_time() - cpu


def peak_mib(folder: Path, source: Path, times: int) -> float:
    """Peak resident memory of a fresh process that tokenizes `source` so many times into one file."""
    command = [sys.executable, "-c", PEAK, str(folder), str(source), str(times), str(ROOT)]
    return int(subprocess.run(command, capture_output=True, text=True, check=True).stdout) / 1024


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--megabytes", type=int, default=16)
    parser.add_argument("--output", type=Path, default=ROOT / "benchmarks" / "results")
    args = parser.parse_args()
    documents = make_documents(args.megabytes)
    megabytes = sum(len(document.encode()) for document in documents) / 1e6
    rows: list[dict[str, object]] = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        source = folder / "corpus.jsonl"
        source.write_text("".join(json.dumps({"text": document}) + "\n" for document in documents))
        train_bpe(documents[:1000], VOCAB_SIZE, folder / "tokenizer.json")
        library, tokenizer = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json")), Tokenizer.open(folder)

        def theirs() -> None:
            for i in range(0, len(documents), LIBRARY_BATCH):
                library.encode_batch(documents[i : i + LIBRARY_BATCH])

        def ours() -> None:
            tokenize_files([source], tokenizer, folder / "out", DocumentReader())

        for round_number in range(args.rounds + 1):
            turns = [("library", theirs), ("megalith", ours)]
            row: dict[str, object] = {"round": round_number}
            for who, turn in turns if round_number % 2 else reversed(turns):
                wall, cpu = seconds_of(turn)
                row |= {f"{who}_mb_per_s": megabytes / wall, f"{who}_cpu_seconds": cpu}
            if round_number:  # the first one fills caches
                rows.append(row)
                print(
                    ", ".join(f"{k} {v:.2f}" if isinstance(v, float) else f"{k} {v}" for k, v in row.items()),
                    flush=True,
                )
        expected = [library.encode(document, add_special_tokens=False).ids for document in documents[:50]]
        tokens = IndexedTokens(folder / "out")
        assert [tokens[i][:-1].tolist() for i in range(50)] == expected
        peaks = [peak_mib(folder, source, times) for times in (1, 4)]
    ratios = [float(str(row["megalith_mb_per_s"])) / float(str(row["library_mb_per_s"])) for row in rows]
    for row, ratio in zip(rows, ratios, strict=True):
        row |= {"ratio": ratio, "load_1_min": os.getloadavg()[0], "cores": os.cpu_count(), "text_mb": megabytes}
        row |= {"peak_mib_1x": peaks[0], "peak_mib_4x": peaks[1], "tokenizers": tokenizers.__version__}
    args.output.mkdir(parents=True, exist_ok=True)
    columns = sorted(rows[0], key=lambda name: name != "round")
    with open(args.output / "tokenize_vs_library.csv", "w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, columns)
        writer.writeheader()
        writer.writerows({k: f"{v:.3f}" if isinstance(v, float) else v for k, v in row.items()} for row in rows)
    print(f"median ratio {median(ratios):.3f} on {os.cpu_count()} cores, {megabytes:.1f} MB of text")
    print(f"peak memory {peaks[0]:.0f} MiB; with four times the text {peaks[1]:.0f} MiB")


if __name__ == "__main__":
    main()
