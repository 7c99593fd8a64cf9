"""Read documents out of text and JSONL files, one at a time, so that no step downstream knows what a file looks like.

`.jsonl`, `.ndjson` and `.json`: one JSON object a line, the text under one key; any other ending: plain text in UTF-8.
A plain file is one document, or several where runs of blank lines part them. All of them may be compressed: `.gz`,
`.bz2`, `.xz`, and `.zst` with the package zstandard.
"""

from __future__ import annotations

import bz2
import codecs
import gzip
import json
import lzma
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from io import BufferedReader
from pathlib import Path
from typing import BinaryIO

from megalith.errors import UserError

JSON_ENDINGS = (".jsonl", ".ndjson", ".json")
COMPRESSED_ENDINGS = (".gz", ".bz2", ".xz", ".zst")


def _ignore(num_bytes: int) -> None:
    pass


@dataclass(frozen=True)
class DocumentReader:
    """How to find the documents of files.

    json_key: key of the text in each JSON object.
    blank_lines: a run of at least so many blank lines ends a document of a plain file; 0 leaves the file whole.
    """

    json_key: str = "text"
    blank_lines: int = 0

    def read(self, paths: Sequence[Path], on_bytes: Callable[[int], None] = _ignore) -> Iterator[str]:
        """Texts of all documents, files in the given order, empty JSON texts included; `on_bytes` hears of bytes read.

        Line ends and every other character stay as they are; only the blank lines between documents go.

        Raises UserError with file and line where bytes are no UTF-8, a line is no JSON object or has no text.
        """
        parts: list[str] = []
        for part, is_last in self.read_parts(paths, on_bytes):
            parts.append(part)
            if is_last:
                yield "".join(parts)
                parts.clear()

    def read_parts(
        self, paths: Sequence[Path], on_bytes: Callable[[int], None] = _ignore
    ) -> Iterator[tuple[str, bool]]:
        """As `read`, without ever holding a plain file whole: (part of a document, whether it is the last one)."""
        for path in paths:
            if _plain_name(path).suffix in JSON_ENDINGS:
                yield from ((text, True) for text in self._json_lines(path, on_bytes))
            elif self.blank_lines:
                documents = split_on_blank_lines(_lines(path, on_bytes), self.blank_lines)
                yield from ((text, True) for text in documents)
            else:
                yield from ((line, False) for line in _lines(path, on_bytes))
                yield "", True

    def _json_lines(self, path: Path, on_bytes: Callable[[int], None]) -> Iterator[str]:
        for number, line in enumerate(_lines(path, on_bytes), start=1):
            if line.strip():
                yield self._text_of(line, f"{path}, line {number}")

    def _text_of(self, line: str, where: str) -> str:
        try:
            record = json.loads(line)
        except ValueError as error:
            raise UserError(f"{where}: not JSON ({error}); a JSONL file has one object a line") from error
        if not isinstance(record, dict):
            raise UserError(f"{where}: a {type(record).__name__}, not a JSON object with the key {self.json_key!r}")
        if self.json_key not in record:
            keys = ", ".join(map(repr, record)) or "none"
            raise UserError(f"{where}: no key {self.json_key!r}; its keys are {keys}; choose with --json-key")
        text = record[self.json_key]
        if not isinstance(text, str):
            raise UserError(f"{where}: {self.json_key!r} is a {type(text).__name__}, not text")
        return _joined_surrogates(text)


def split_on_blank_lines(lines: Iterable[str], blank_lines: int) -> Iterator[str]:
    """Documents of `lines` (with their ends), parted by at least `blank_lines` lines of nothing but white space.

    Documents keep their inner blank lines and the end of their last line; none is empty.
    """
    kept: list[str] = []
    blanks: list[str] = []
    for line in lines:
        if not line.strip():
            blanks.append(line)
            continue
        if kept and len(blanks) >= blank_lines:
            yield "".join(kept)
            kept = []
        elif kept:
            kept += blanks
        blanks = []
        kept.append(line)
    if kept:
        yield "".join(kept)


def check_files(paths: Sequence[Path]) -> int:
    """Bytes of all `paths` together. Raises UserError that lists each one that is not a readable file."""
    bad = [str(path) for path in paths if not path.is_file()]
    if bad:
        raise UserError(f"not a file: {', '.join(bad)}; name text (.txt) or JSONL (.jsonl) files")
    return sum(path.stat().st_size for path in paths)


def _lines(path: Path, on_bytes: Callable[[int], None]) -> Iterator[str]:
    """Lines with their ends, decoded strictly; a byte order mark at the beginning of the file is dropped.

    `on_bytes` hears of bytes as they lie on disk, compressed or not.
    """
    with open(path, "rb") as file:
        told, lines = 0, _whole_lines(path, file)
        for number, raw in enumerate(lines, start=1):
            read = file.tell()
            if read > told:
                on_bytes(read - told)
                told = read
            if number == 1:
                raw = raw.removeprefix(codecs.BOM_UTF8)
            try:
                yield raw.decode()
            except UnicodeDecodeError as error:
                raise UserError(
                    f"{path}, line {number}: byte {error.start + 1} is not UTF-8 text ({error.reason}); "
                    "convert the file, for example with iconv, or unpack it first"
                ) from error


def _whole_lines(path: Path, file: BinaryIO) -> Iterator[bytes]:
    """Lines of `file`, unpacked where the name of `path` says that it is packed."""
    lines, damages = _unpacked(path, file)
    try:
        yield from lines
    except damages as error:
        raise UserError(f"{path}: not a whole {path.suffix} file ({error}); copy it again") from error


def _unpacked(path: Path, file: BinaryIO) -> tuple[Iterable[bytes], tuple[type[Exception], ...]]:
    """The lines, and what is raised where the packed bytes are damaged."""
    if path.suffix == ".gz":
        return gzip.GzipFile(fileobj=file), (EOFError, OSError, zlib.error)
    if path.suffix == ".bz2":
        return bz2.BZ2File(file), (EOFError, OSError)
    if path.suffix == ".xz":
        return lzma.LZMAFile(file), (EOFError, lzma.LZMAError)
    if path.suffix != ".zst":
        return file, ()
    try:
        import zstandard  # pyright: ignore[reportMissingImports] - optional
    except ImportError as error:
        raise UserError(f"{path} needs the package zstandard: pip install zstandard, or unpack the file") from error
    reader = zstandard.ZstdDecompressor().stream_reader(file, read_across_frames=True)
    return BufferedReader(reader), (zstandard.ZstdError,)  # pyright: ignore[reportArgumentType] - a raw stream


def _plain_name(path: Path) -> Path:
    """`path` without the ending of its compression: `a.jsonl.gz` -> `a.jsonl`."""
    return path.with_suffix("") if path.suffix in COMPRESSED_ENDINGS else path


def _joined_surrogates(text: str) -> str:
    r"""`text` as it can be stored in UTF-8: a lone surrogate, which JSON may hold as `\ud800`, becomes U+FFFD."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return text
