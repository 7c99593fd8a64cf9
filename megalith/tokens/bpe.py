"""Train a byte-level BPE tokenizer, so that any text at all can be encoded without an unknown token.

Byte-level: text is cut into words by the pattern of GPT-2, each byte of its UTF-8 form is one of 256 base tokens, and
merges of frequent neighbours fill the vocabulary (Sennrich et al., arXiv:1508.07909; Radford et al. 2019, section 2.2).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from megalith.errors import UserError
from megalith.files import atomic_writer

END_OF_DOCUMENT = "<|endoftext|>"
SMALLEST_VOCABULARY = 256 + 1  # every byte, and the end of a document

_PIECE_CHARACTERS = 1 << 20  # text handed to the trainer at once; bounds its memory on files that are one document


def train_bpe(documents: Iterable[str], vocab_size: int, output: Path) -> int:
    """Learn merges from `documents` and write `output`, a tokenizer.json; returns the tokens it really has.

    The same documents give the same file. Fewer than `vocab_size` tokens come out where the text has too few
    different pairs to merge. `<|endoftext|>` has id 0.

    Raises UserError where `vocab_size` cannot hold the 256 bytes and the end of a document, or there is no text.
    """
    if vocab_size < SMALLEST_VOCABULARY:
        raise UserError(
            f"vocab_size={vocab_size} is too small: a byte-level vocabulary holds 256 bytes and {END_OF_DOCUMENT}; "
            f"choose {SMALLEST_VOCABULARY} or more"
        )
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)  # pyright: ignore[reportAttributeAccessIssue]
    tokenizer.decoder = decoders.ByteLevel()  # pyright: ignore[reportAttributeAccessIssue]
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[END_OF_DOCUMENT],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    counted = _Counted(documents)
    tokenizer.train_from_iterator(counted, trainer)
    if counted.characters == 0:
        raise UserError("the tokenizer was given no text to learn from; name files that are not empty")
    with atomic_writer(output) as file:
        file.write(tokenizer.to_str(pretty=True).encode())
    return tokenizer.get_vocab_size(with_added_tokens=True)


class _Counted:
    """The documents in bounded pieces, counting the characters that went by."""

    def __init__(self, documents: Iterable[str]) -> None:
        self.documents = documents
        self.characters = 0

    def __iter__(self) -> Iterator[str]:
        for document in self.documents:
            for piece in pieces(document, _PIECE_CHARACTERS):
                self.characters += len(piece)
                yield piece


def pieces(text: str, limit: int) -> Iterator[str]:
    """Cut `text` into pieces of at most `limit` characters, after a line end where one is near enough.

    >>> list(pieces("ab\\ncd\\nef", 4))
    ['ab\\n', 'cd\\n', 'ef']
    """
    start = 0
    while len(text) - start > limit:
        cut = text.rfind("\n", start, start + limit) + 1
        end = cut if cut > start else start + limit
        yield text[start:end]
        start = end
    if start < len(text):
        yield text[start:]
