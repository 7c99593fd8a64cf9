"""What a token file was made of and by which tokenizer, kept beside it so that a run can refuse a wrong pair."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np

from megalith.errors import UserError
from megalith.files import atomic_writer
from megalith.tokens.index_layout import bin_path
from megalith.tokens.indexed import IndexedTokens
from megalith.tokens.tokenizer import Tokenizer

_CHUNK = 1 << 20  # ids read at once


@dataclass(frozen=True)
class Source:
    """A file that was tokenized, as it lay on disk then."""

    path: str
    bytes: int
    sha256: str

    @classmethod
    def of(cls, path: Path) -> Source:
        """Reads all of `path`."""
        with open(path, "rb") as file:
            return cls(str(path), path.stat().st_size, hashlib.file_digest(file, "sha256").hexdigest())


@dataclass(frozen=True)
class Manifest:
    """`PREFIX.json`. `text_bytes`: UTF-8 bytes of all documents; `bin_*`: size and digest of the `.bin`."""

    tokenizer_digest: str
    vocab_size: int
    end_of_document: int
    append_eod: bool
    documents: int
    tokens: int
    text_bytes: int
    bin_bytes: int
    bin_sha256: str
    dtype: str
    sources: tuple[Source, ...]


def manifest_path(prefix: str | Path) -> Path:
    """`PREFIX.json`."""
    return Path(f"{prefix}.json")


def write_manifest(prefix: str | Path, manifest: Manifest) -> None:
    """Store `manifest` beside the token files of `prefix`."""
    with atomic_writer(manifest_path(prefix)) as file:
        file.write(json.dumps(asdict(manifest), indent=2, ensure_ascii=False).encode() + b"\n")


def read_manifest(prefix: str | Path) -> Manifest | None:
    """The manifest of `prefix`; None where there is none, as beside files of other tools.

    Raises UserError where it is damaged or of another `.bin`.
    """
    path = manifest_path(prefix)
    if not path.exists():
        return None
    try:
        tree: dict[str, Any] = json.loads(path.read_bytes())
        sources = tuple(Source(**source) for source in tree["sources"])
        manifest = Manifest(**{f.name: tree[f.name] for f in fields(Manifest) if f.name != "sources"}, sources=sources)
    except (ValueError, KeyError, TypeError) as error:
        raise UserError(f"{path}: not a manifest of token files ({error!r}); tokenize again") from error
    size = bin_path(prefix).stat().st_size if bin_path(prefix).exists() else 0
    if size != manifest.bin_bytes:
        raise UserError(
            f"{path} describes {manifest.bin_bytes} bytes of tokens, but {bin_path(prefix)} has {size}: they are of "
            "different runs; tokenize again, or remove the manifest if the token files are right"
        )
    return manifest


def common_tokenizer(prefixes: Sequence[str | Path]) -> str | None:
    """The digest of the tokenizer that made all token files that say so; None where none of them does.

    Raises UserError where two of them were made with different ones.
    """
    made_with = {prefix: found for prefix in prefixes if (found := read_manifest(prefix)) is not None}
    for prefix, manifest in made_with.items():
        first = next(iter(made_with))
        if manifest.tokenizer_digest != made_with[first].tokenizer_digest:
            raise UserError(
                f"{prefix} was tokenized with another tokenizer ({_shown(manifest)}) than {first} "
                f"({_shown(made_with[first])}); their ids mean different text: tokenize one of them again"
            )
    return next((manifest.tokenizer_digest for manifest in made_with.values()), None)


def check_manifest(prefix: str | Path, tokenizer: Tokenizer) -> Manifest | None:
    """Refuse token files that were made with another tokenizer; returns their manifest, None where they have none.

    Raises UserError that names both digests.
    """
    manifest = read_manifest(prefix)
    if manifest is not None and manifest.tokenizer_digest != tokenizer.digest:
        raise UserError(
            f"{prefix} was tokenized with another tokenizer ({_shown(manifest)}) than {tokenizer.path} "
            f"(sha256 {tokenizer.digest[:12]}..., vocabulary {tokenizer.vocab_size}); name that tokenizer, or tokenize "
            "again"
        )
    return manifest


def check_tokens(tokens: IndexedTokens, manifest: Manifest | None, vocab_size: int | None = None) -> None:
    """Read all ids of a token file: each in the vocabulary, and all bytes as they were written, as far as is known.

    Raises UserError that names the first wrong id, or both digests.
    """
    limit = vocab_size or (manifest.vocab_size if manifest else None)
    digest = hashlib.sha256()
    for start in range(0, tokens.num_tokens, _CHUNK):
        ids = tokens.slice(start, start + _CHUNK)
        digest.update(ids.data)
        wrong = np.flatnonzero((ids < 0) | (ids >= limit)) if limit is not None else np.empty(0, np.int64)
        if wrong.size:
            place = start + int(wrong[0])
            raise UserError(
                f"{bin_path(tokens.prefix)}: token {place} has id {ids[wrong[0]]}, outside the vocabulary of {limit}: "
                "damaged, or made with another tokenizer"
            )
    if manifest is not None and digest.hexdigest() != manifest.bin_sha256:
        raise UserError(
            f"{bin_path(tokens.prefix)}: its bytes are not the ones written (sha256 {digest.hexdigest()[:12]}..., "
            f"not {manifest.bin_sha256[:12]}...): copy it again or tokenize again"
        )


def _shown(manifest: Manifest) -> str:
    return f"sha256 {manifest.tokenizer_digest[:12]}..., vocabulary {manifest.vocab_size}"
