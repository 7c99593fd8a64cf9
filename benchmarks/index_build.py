"""Time and peak memory of the order of samples, for a corpus of millions of documents.

python benchmarks/index_build.py [--documents 5000000] [--tokens 700] [--output benchmarks/results]
"""

from __future__ import annotations

import argparse
import csv
import os
import sys
import tempfile
import time
import tracemalloc
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from megalith.data.index_cache import IndexCache  # noqa: E402
from megalith.data.samples import EpochSamples  # noqa: E402
from megalith.tokens.index_layout import bin_path, idx_path, write_index  # noqa: E402
from megalith.tokens.indexed import IndexedTokens  # noqa: E402

SEQ_LEN = 2048


def sparse_tokens(prefix: Path, documents: int, tokens: int) -> IndexedTokens:
    """A token file of random lengths whose .bin is a hole: its index is real, its ids are 0."""
    lengths = np.random.RandomState(0).randint(1, 2 * tokens, documents).astype(np.int32)
    with open(idx_path(prefix), "wb") as file:
        write_index(file, np.dtype("<u2"), lengths, np.arange(documents + 1))
    with open(bin_path(prefix), "wb") as file:
        file.truncate(2 * int(lengths.sum(dtype=np.int64)))
    return IndexedTokens(prefix)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--documents", type=int, default=5_000_000)
    parser.add_argument("--tokens", type=int, default=700, help="mean tokens of a document")
    parser.add_argument("--output", type=Path, default=ROOT / "benchmarks" / "results")
    args = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory() as name:
        tokens = sparse_tokens(Path(name) / "text", args.documents, args.tokens)
        for what in ("time", "memory", "cached"):
            if what == "memory":  # apart from the time, which tracing costs
                tracemalloc.start()
            folder = Path(name) / ("memory" if what == "memory" else "time")
            started = time.perf_counter()
            samples = EpochSamples(tokens, range(args.documents), SEQ_LEN, 1, IndexCache(folder))
            samples[0]
            seconds = time.perf_counter() - started
            peak = tracemalloc.get_traced_memory()[1] / args.documents if what == "memory" else None
            tracemalloc.stop()
            row = {"documents": args.documents, "samples": samples.samples_per_epoch, "what": what}
            rows.append(row | {"seconds": seconds, "peak_bytes_per_document": peak, "cores": os.cpu_count()})
            print(rows[-1], flush=True)
    args.output.mkdir(parents=True, exist_ok=True)
    with open(args.output / "index_build.csv", "w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows({k: f"{v:.3f}" if isinstance(v, float) else v for k, v in row.items()} for row in rows)


if __name__ == "__main__":
    main()
