"""Cut long documents where the tokenizer cuts them anyway, so that memory stays flat and all cores have work."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from megalith.tokens.tokenizer import Tokenizer

PIECE_CHARACTERS = 1 << 16
_CONTEXT = 256  # characters on each side of a cut that must give the same ids with and without it
_TRIES = 32


@dataclass(frozen=True)
class Piece:
    """Part of a document, the last one or not. The ids of its pieces, end to end, are those of the whole."""

    text: str
    is_last: bool


def pieces(parts: Iterable[tuple[str, bool]], tokenizer: Tokenizer, limit: int = PIECE_CHARACTERS) -> Iterator[Piece]:
    """Pieces of at most about `limit` characters from (part of a document, whether it is the last one).

    A document that has no place to cut, or a tokenizer that looks further than lines, gives longer pieces.
    """
    kept: list[str] = []
    characters, wanted = 0, limit
    for part, is_last in parts:
        kept.append(part)
        characters += len(part)
        if characters > wanted:
            text, start = "".join(kept), 0
            while len(text) - start > limit and (end := cut_before(text, start, start + limit, tokenizer)):
                yield Piece(text[start:end], False)
                start = end
            kept, characters = [text[start:]], len(text) - start
            wanted = max(limit, 2 * characters)
        if is_last:
            yield Piece("".join(kept), True)
            kept, characters, wanted = [], 0, limit


def cut_before(text: str, start: int, end: int, tokenizer: Tokenizer) -> int:
    """Where to cut `text`: the last beginning of a line in start + 1 .. end over which no token and no rule reaches.

    0 where there is none. The ids around the place must be those of its two sides, each by itself; and no white space
    goes on beyond what is looked at.
    """
    end = min(end, len(text) - _CONTEXT)
    for _ in range(_TRIES):
        end = text.rfind("\n", start, max(start, end - 1)) + 1
        if end < start + 2:
            return 0
        before, behind = text[max(start, end - _CONTEXT) : end], text[end : end + _CONTEXT]
        if before.isspace() or behind.isspace():
            continue
        if tokenizer.encode(before) + tokenizer.encode(behind) == tokenizer.encode(before + behind):
            return end
    return 0
