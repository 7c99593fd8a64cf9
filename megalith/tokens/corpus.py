"""Turn documents into a token file with its manifest."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

from megalith.errors import UserError
from megalith.tokens.documents import DocumentReader
from megalith.tokens.index_layout import bin_path, dtype_for, idx_path
from megalith.tokens.indexed import IndexedWriter
from megalith.tokens.manifest import Manifest, Source, manifest_path, write_manifest
from megalith.tokens.tokenizer import Tokenizer

_BATCH_DOCUMENTS = 1024
_BATCH_CHARACTERS = 1 << 22


def tokenize_files(
    sources: Sequence[Path],
    tokenizer: Tokenizer,
    prefix: str | Path,
    reader: DocumentReader,
    append_eod: bool = True,
    on_bytes: Callable[[int], None] = lambda num_bytes: None,
) -> Manifest:
    """Write `PREFIX.bin`, `PREFIX.idx`, `PREFIX.json` from the documents of `sources`; returns what was written.

    append_eod: end each document with the tokenizer's end-of-document id. A document without a token stays without one,
    as Megatron does.  on_bytes: hears of source bytes read.

    Older files of this prefix stay until all text is tokenized. Raises UserError for a source that is no text,
    or that the output would replace.
    """
    check_no_overwrite([*sources, tokenizer.path], prefix)
    text_bytes = 0
    with IndexedWriter(prefix, dtype_for(tokenizer.vocab_size)) as writer:
        for batch in batched_by_size(reader.read(sources, on_bytes)):
            text_bytes += sum(len(text.encode()) for text in batch)
            for ids in tokenizer.encode_batch(batch):
                if ids and append_eod:
                    ids.append(tokenizer.end_of_document)
                writer.append(ids)
        manifest = Manifest(
            tokenizer_digest=tokenizer.digest,
            vocab_size=tokenizer.vocab_size,
            end_of_document=tokenizer.end_of_document,
            append_eod=append_eod,
            documents=writer.num_documents,
            tokens=writer.num_tokens,
            text_bytes=text_bytes,
            bin_bytes=writer.num_tokens * writer.dtype.itemsize,
            dtype=writer.dtype.name,
            sources=tuple(Source(str(path), path.stat().st_size) for path in sources),
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


def batched_by_size(texts: Iterable[str]) -> Iterator[list[str]]:
    """Lists of texts that are worth encoding together and fit in memory: some MB, or one longer text alone."""
    batch: list[str] = []
    characters = 0
    for text in texts:
        if batch and (len(batch) == _BATCH_DOCUMENTS or characters + len(text) > _BATCH_CHARACTERS):
            yield batch
            batch, characters = [], 0
        batch.append(text)
        characters += len(text)
    if batch:
        yield batch
