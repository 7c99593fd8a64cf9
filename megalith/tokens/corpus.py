"""Turn documents into a token file with its manifest, on all cores and in flat memory."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

import numpy as np

from megalith.errors import UserError
from megalith.tokens.documents import DocumentReader
from megalith.tokens.index_layout import bin_path, dtype_for, idx_path
from megalith.tokens.manifest import Manifest, Source, manifest_path, write_manifest
from megalith.tokens.pieces import Piece, pieces
from megalith.tokens.tokenizer import Tokenizer
from megalith.tokens.writer import IndexedWriter

_BATCH_PIECES = 1024
_BATCH_CHARACTERS = 1 << 16
_LIBRARY_THREADS = "TOKENIZERS_PARALLELISM"
Item = TypeVar("Item")
Result = TypeVar("Result")


def tokenize_files(
    sources: Sequence[Path],
    tokenizer: Tokenizer,
    prefix: str | Path,
    reader: DocumentReader,
    append_eod: bool = True,
    num_threads: int | None = None,
    on_bytes: Callable[[int], None] = lambda num_bytes: None,
) -> Manifest:
    """Write `PREFIX.bin`, `PREFIX.idx`, `PREFIX.json` from the documents of `sources`; returns what was written.

    append_eod: end each document with the tokenizer's end-of-document id. A document without a token stays without one,
    as Megatron does.  num_threads: as many as there are cores by default.  on_bytes: hears of source bytes read.

    Older files of this prefix stay until all text is tokenized. Raises UserError for a source that is no text,
    or that the output would replace.
    """
    check_no_overwrite([*sources, tokenizer.path], prefix)
    dtype = dtype_for(tokenizer.vocab_size)
    end_of_document, threads = np.array([tokenizer.end_of_document], dtype), num_threads or os.cpu_count() or 1

    def encode(batch: list[Piece]) -> list[np.ndarray]:
        return [np.array(ids, dtype) for ids in tokenizer.encode_batch([piece.text for piece in batch])]

    text_bytes = 0
    with _pool(threads + 1) as pool, one_thread_each(), IndexedWriter(prefix, dtype) as writer:
        described = [pool.submit(Source.of, path) for path in sources]
        batches = batched_by_size(pieces(reader.read_parts(sources, on_bytes), tokenizer))
        for batch, ids in map_ahead(pool, encode, batches, 2 * threads):
            text_bytes += sum(len(piece.text.encode()) for piece in batch)
            for piece, piece_ids in zip(batch, ids, strict=True):
                writer.append_part(piece_ids)
                if piece.is_last:
                    if append_eod and writer.part_tokens:
                        writer.append_part(end_of_document)
                    writer.end_document()
        manifest = Manifest(
            tokenizer_digest=tokenizer.digest,
            vocab_size=tokenizer.vocab_size,
            end_of_document=tokenizer.end_of_document,
            append_eod=append_eod,
            documents=writer.num_documents,
            tokens=writer.num_tokens,
            text_bytes=text_bytes,
            bin_bytes=writer.num_tokens * writer.dtype.itemsize,
            bin_sha256=writer.bin_sha256,
            dtype=writer.dtype.name,
            sources=tuple(source.result() for source in described),
        )
        manifest_path(prefix).unlink(missing_ok=True)
    write_manifest(prefix, manifest)
    return manifest


def check_no_overwrite(inputs: Sequence[Path], prefix: str | Path) -> None:
    """Raises UserError where `PREFIX.bin`, `PREFIX.idx` or `PREFIX.json` is one of the inputs."""
    outputs = [path.resolve() for path in (bin_path(prefix), idx_path(prefix), manifest_path(prefix))]
    for path in inputs:
        if path.resolve() in outputs:
            raise UserError(f"the output {prefix}.* would replace the input {path}; choose another output prefix")


def batched_by_size(items: Iterable[Piece]) -> Iterator[list[Piece]]:
    """Lists of pieces that are worth encoding together: some 64 KB, or one longer piece alone."""
    batch: list[Piece] = []
    characters = 0
    for piece in items:
        if batch and (len(batch) == _BATCH_PIECES or characters + len(piece.text) > _BATCH_CHARACTERS):
            yield batch
            batch, characters = [], 0
        batch.append(piece)
        characters += len(piece.text)
    if batch:
        yield batch


def map_ahead(
    pool: ThreadPoolExecutor, function: Callable[[Item], Result], items: Iterable[Item], most_ahead: int
) -> Iterator[tuple[Item, Result]]:
    """Each item with its result, in order; at most `most_ahead` items are under way, so that memory stays flat."""
    under_way: deque[tuple[Item, Future[Result]]] = deque()
    for item in items:
        under_way.append((item, pool.submit(function, item)))
        if len(under_way) > most_ahead:
            first, result = under_way.popleft()
            yield first, result.result()
    for item, result in under_way:
        yield item, result.result()


@contextmanager
def one_thread_each() -> Iterator[None]:
    """The tokenizers library encodes in the thread that asks, and not in a pool of its own.

    Its pool makes all threads wait for the slowest of each batch; threads of ours that take batches in turn do not. The
    library knows no other switch than this variable of the environment, which it reads at each call.
    """
    before = os.environ.get(_LIBRARY_THREADS)
    os.environ[_LIBRARY_THREADS] = "false"
    try:
        yield
    finally:
        if before is None:
            del os.environ[_LIBRARY_THREADS]
        else:
            os.environ[_LIBRARY_THREADS] = before


@contextmanager
def _pool(num_threads: int) -> Iterator[ThreadPoolExecutor]:
    """Threads that end with the block; after an error or Ctrl-C what waits is dropped."""
    pool = ThreadPoolExecutor(num_threads, "tokenize")
    try:
        yield pool
    finally:
        pool.shutdown(cancel_futures=True)
