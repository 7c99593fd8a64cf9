"""Lay token files end to end, as if their texts had been tokenized together."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from megalith.errors import UserError
from megalith.tokens.index_layout import bin_path, idx_path
from megalith.tokens.indexed import IndexedTokens
from megalith.tokens.manifest import Manifest, common_tokenizer, manifest_path, read_manifest, write_manifest
from megalith.tokens.writer import IndexedWriter


def merge_files(
    prefixes: Sequence[str | Path], output: str | Path, on_bytes: Callable[[int], None] = lambda num_bytes: None
) -> IndexedTokens:
    """Write `OUTPUT.bin` and `OUTPUT.idx` from the documents of all `prefixes` in their order; returns the result.

    A manifest is written where all of them have one. Memory holds 12 bytes a document. on_bytes: hears of .bin bytes.

    Raises UserError where dtypes or tokenizers differ, a file is damaged, or the output exists: nothing is replaced.
    """
    for path in (bin_path(output), idx_path(output), manifest_path(output)):
        if path.exists():
            raise UserError(f"{path} exists already, and merging replaces nothing; choose another output prefix")
    common_tokenizer(prefixes)
    parts = [IndexedTokens(prefix) for prefix in prefixes]
    with IndexedWriter(output, parts[0].dtype) as writer:
        for part in parts:
            part.verify()
            writer.extend(part)
            on_bytes(part.num_tokens * part.dtype.itemsize)
    manifests = [manifest for prefix in prefixes if (manifest := read_manifest(prefix)) is not None]
    if len(manifests) == len(parts):
        write_manifest(output, _merged(manifests, writer))
    return IndexedTokens(output)


def _merged(manifests: Sequence[Manifest], writer: IndexedWriter) -> Manifest:
    """What the parts have in common, and the sum of what they have not."""
    first = manifests[0]
    return Manifest(
        tokenizer_digest=first.tokenizer_digest,
        vocab_size=first.vocab_size,
        end_of_document=first.end_of_document,
        append_eod=all(manifest.append_eod for manifest in manifests),
        documents=writer.num_documents,
        tokens=writer.num_tokens,
        text_bytes=sum(manifest.text_bytes for manifest in manifests),
        bin_bytes=writer.num_tokens * writer.dtype.itemsize,
        bin_sha256=writer.bin_sha256,
        dtype=writer.dtype.name,
        sources=tuple(source for manifest in manifests for source in manifest.sources),
    )
