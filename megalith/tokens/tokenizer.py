"""Open any tokenizer.json and turn text into ids and back, exactly."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import tokenizers

from megalith.errors import UserError

END_OF_DOCUMENT_NAMES = ("<|endoftext|>", "</s>", "<|end_of_text|>")  # GPT-2 and NeoX, Llama 2 and BLOOM, Llama 3


class Tokenizer:
    """A tokenizer.json as the rest of the project sees it.

    Text never yields a special token: `<|endoftext|>` inside a document is encoded letter by letter, so that no
    document can end another. Neither truncation nor padding that the file asks for is applied.

    vocab_size: one more than the largest id, added tokens included (rows that a model's embedding needs).
    end_of_document: id that separates documents; the first of `<|endoftext|>`, `</s>`, `<|end_of_text|>` that exists.
    digest: sha256 of the file, hexadecimal; token files carry it so that a run can refuse another tokenizer.
    """

    vocab_size: int
    end_of_document: int
    digest: str

    def __init__(self, path: Path) -> None:
        raw, self._inner = _read(path)
        self.path = path
        self.digest = hashlib.sha256(raw).hexdigest()
        self._inner.no_truncation()
        self._inner.no_padding()
        self._inner.encode_special_tokens = True
        self._tokens = self._inner.get_vocab(with_added_tokens=True)
        self.vocab_size = max(self._tokens.values(), default=-1) + 1
        self.end_of_document = self._find_end_of_document()
        self._byte_lengths = _byte_lengths(self._inner, self._tokens, self.vocab_size)

    @classmethod
    def open(cls, path: str | Path) -> Tokenizer:
        """The tokenizer stored at `path`: a tokenizer.json, or a folder that holds one.

        Raises UserError where the file is missing, cannot be read as a tokenizer, or has no end-of-document token.
        """
        path = Path(path)
        return cls(path / "tokenizer.json" if path.is_dir() else path)

    def encode(self, text: str) -> list[int]:
        """Ids of `text`, without any token that marks its beginning or end."""
        return self._inner.encode(text, add_special_tokens=False).ids

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """`encode` of each text, on all cores."""
        encodings = self._inner.encode_batch_fast(list(texts), add_special_tokens=False)
        return [encoding.ids for encoding in encodings]

    def decode(self, ids: Sequence[int]) -> str:
        """Text of `ids`. Special tokens carry none; bytes that are no UTF-8 come out as U+FFFD."""
        return self._inner.decode([int(i) for i in ids], skip_special_tokens=True)

    def byte_length(self, ids: Sequence[int] | np.ndarray) -> int:
        """UTF-8 bytes that `ids` stand for; special tokens count 0. What bits per byte is divided by.

        Exact for byte-level tokenizers, also where `ids` cut a character in two. For others it is the length of the
        decoded text. Raises UserError on an id outside the vocabulary.
        """
        ids = np.asarray(ids, dtype=np.int64)
        if ids.size and not 0 <= int(ids.min()) <= int(ids.max()) < self.vocab_size:
            worst = int(ids.min()) if ids.min() < 0 else int(ids.max())
            raise UserError(
                f"token id {worst} is not in the vocabulary of {self.path}: ids go from 0 to {self.vocab_size - 1}"
            )
        if self._byte_lengths is None:
            return len(self.decode(ids.tolist()).encode())
        return int(self._byte_lengths[ids].sum())

    def _find_end_of_document(self) -> int:
        for name in END_OF_DOCUMENT_NAMES:
            if name in self._tokens:
                return self._tokens[name]
        raise UserError(
            f"{self.path} has no token that ends a document: looked for {', '.join(END_OF_DOCUMENT_NAMES)}; "
            "add one of them to its added_tokens"
        )


def _read(path: Path) -> tuple[bytes, tokenizers.Tokenizer]:
    try:
        raw = path.read_bytes()
    except OSError as error:
        raise UserError(
            f"cannot read the tokenizer {path}: {error.strerror}; name a tokenizer.json or its folder"
        ) from error
    try:
        return raw, tokenizers.Tokenizer.from_buffer(raw)
    except Exception as error:  # the library raises plain Exception or ValueError for every fault of the file
        raise UserError(f"{path} is not a tokenizer.json that the tokenizers library reads: {error}") from error


def _byte_lengths(inner: tokenizers.Tokenizer, tokens: dict[str, int], vocab_size: int) -> np.ndarray | None:
    """Bytes of each id (int64, vocab_size) where the tokenizer is byte-level: each character of a token is one byte."""
    if not _is_byte_level(json.loads(inner.to_str())["decoder"]):
        return None
    lengths = np.zeros(vocab_size, dtype=np.int64)
    added = inner.get_added_tokens_decoder()
    for token, index in tokens.items():
        if index in added:
            lengths[index] = 0 if added[index].special else len(token.encode())
        else:
            lengths[index] = len(token)
    return lengths


def _is_byte_level(decoder: dict | None) -> bool:
    """Whether the decoder of a tokenizer.json, or one in its sequence, maps characters back to bytes."""
    if decoder is None:
        return False
    return decoder["type"] == "ByteLevel" or any(_is_byte_level(d) for d in decoder.get("decoders", ()))
