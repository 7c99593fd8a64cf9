"""Continue a prompt, token by token, by running the whole prefix again for each: plain, and right for every model.

# B sequences (1)  S positions  V vocabulary
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch

from megalith.config.model import Position
from megalith.errors import UserError
from megalith.inference.sampling import Sampling, choose
from megalith.models.decoder import Decoder
from megalith.opening.model import OpenModel


def continue_text(opened: OpenModel, prompt: str, max_new_tokens: int, sampling: Sampling) -> Iterator[str]:
    """Pieces of text after `prompt`, as they come; together they are the decoded continuation, spaces and all.

    Ends at the end of the document or after `max_new_tokens`. An empty prompt begins a new document. Raises UserError
    where the prompt is no text, or prompt and new tokens do not fit the model.
    """
    tokenizer = opened.tokenizer
    check_text(prompt)
    prompt_ids = tokenizer.encode(prompt) or [tokenizer.end_of_document]
    new_ids: list[int] = []
    shown = ""
    for token in generate(
        opened.model, prompt_ids, max_new_tokens, sampling, tokenizer.end_of_document, tokenizer.vocab_size
    ):
        new_ids.append(token)
        text = tokenizer.decode(new_ids)
        if text.endswith("\ufffd"):  # a character whose bytes are not all there yet
            continue
        yield text[len(shown) :]
        shown = text
    rest = tokenizer.decode(new_ids)[len(shown) :]
    if rest:
        yield rest


@torch.no_grad()
def generate(
    model: Decoder,
    prompt_ids: Sequence[int],
    max_new_tokens: int,
    sampling: Sampling,
    end_of_document: int | None = None,
    num_tokens: int | None = None,
) -> Iterator[int]:
    """Ids after `prompt_ids`, without the end of the document, at which they stop.

    Only ids below `num_tokens` are sampled, where the model has more rows than its tokenizer has tokens. The generator
    is its own, so that training's random numbers stay as they are; dropout is off since the model is given no seed.
    """
    check_length(model, len(prompt_ids), max_new_tokens)
    device = next(model.parameters()).device
    generator = torch.Generator(device=device).manual_seed(sampling.seed)
    ids = list(prompt_ids)
    for _ in range(max_new_tokens):
        logits_TV = model(torch.tensor([ids], device=device))
        token = choose(logits_TV[-1, :num_tokens], sampling, generator)
        if token == end_of_document:
            return
        ids.append(token)
        yield token


def check_text(prompt: str) -> None:
    """Raises UserError where the prompt holds bytes that are not text, which Python passes on as lone surrogates."""
    try:
        prompt.encode()
    except UnicodeEncodeError as error:
        raise UserError(f"prompt: character {error.start + 1} is not UTF-8 text; give the prompt in UTF-8") from error


def check_length(model: Decoder, prompt_tokens: int, max_new_tokens: int) -> None:
    """Raises UserError where there is nothing to continue, or a learned position would be missing.

    ALiBi and rotary positions go on beyond `max_seq_len`, in lower quality; learned ones end there.
    """
    if prompt_tokens < 1 or max_new_tokens < 1:
        raise UserError(f"prompt of {prompt_tokens} tokens, max_new_tokens={max_new_tokens}: both must be at least 1")
    limit, total = model.config.max_seq_len, prompt_tokens + max_new_tokens
    if model.config.position is Position.LEARNED and total > limit:
        raise UserError(
            f"prompt of {prompt_tokens} tokens + max_new_tokens={max_new_tokens} = {total} tokens, but the model has "
            f"learned positions for max_seq_len={limit}; choose max_new_tokens up to {max(0, limit - prompt_tokens)} "
            "or a shorter prompt"
        )
