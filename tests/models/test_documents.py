"""Documents that share a row: each is computed as if it stood alone, in every family and with both kernels."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from megalith.config.model import Attention
from megalith.config.presets import model_preset
from megalith.models.decoder import Decoder
from megalith.models.init import initialise
from megalith.models.positions import positions_in_documents

LENGTHS = (3, 7, 6)
FAMILIES = ("gpt-tiny", "bloom-tiny", "llama-tiny", "window")


def make(family: str, attention: Attention) -> Decoder:
    config = model_preset("llama-tiny" if family == "window" else family)
    config = replace(config, vocab_size=101, max_seq_len=16, sliding_window=4 if family == "window" else None)
    model = Decoder(config, attention).double()
    initialise(model, config, seed=3)
    for parameter in model.parameters():  # far from the near-identity of first values
        parameter.data.mul_(4.0) if parameter.dim() > 1 else parameter.data.add_(0.1 * torch.randn_like(parameter))
    return model


def documents_of(lengths: tuple[int, ...]) -> torch.Tensor:
    return torch.repeat_interleave(torch.arange(len(lengths)), torch.tensor(lengths))[None]


def test_positions_start_again_with_each_document() -> None:
    documents = torch.cat([documents_of(LENGTHS), documents_of((16,)), documents_of((1, 1, 14)) * 5])
    expected = [[*range(3), *range(7), *range(6)], [*range(16)], [0, 0, *range(14)]]
    assert positions_in_documents(documents).tolist() == expected


@pytest.mark.parametrize("attention", Attention)
@pytest.mark.parametrize("family", FAMILIES)
def test_each_document_has_the_logits_and_gradients_it_has_alone(family: str, attention: Attention) -> None:
    torch.manual_seed(0)
    model, tokens = make(family, attention), torch.randint(101, (2, 16))
    targets = torch.randint(101, (2, 16))
    documents = torch.cat([documents_of(LENGTHS), documents_of((9, 7))])
    logits = model(tokens, documents_BS=documents)
    model(tokens, targets, documents_BS=documents).backward()
    gradients = {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}
    model.zero_grad()
    alone = []
    for row, lengths in ((0, LENGTHS), (1, (9, 7))):
        for ids, wanted in zip(tokens[row].split(lengths), targets[row].split(lengths), strict=True):
            alone.append(model(ids[None]))
            model(ids[None], wanted[None]).backward()
    torch.testing.assert_close(logits, torch.cat(alone), rtol=1e-9, atol=1e-9)
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(gradients[name], parameter.grad, rtol=1e-9, atol=1e-9, msg=name)


@pytest.mark.parametrize("attention", Attention)
@pytest.mark.parametrize("family", FAMILIES)
def test_changing_one_document_leaves_the_others_as_they_are(family: str, attention: Attention) -> None:
    model, tokens = make(family, attention), torch.arange(16)[None]
    changed = tokens.clone()
    changed[0, :3] += 50
    with torch.no_grad():
        one, other = (model(ids, documents_BS=documents_of(LENGTHS)) for ids in (tokens, changed))
        without = model(changed)
    assert torch.equal(one[3:], other[3:])
    assert not torch.equal(one[:3], other[:3])
    assert not torch.allclose(without[3:6], other[3:6])  # what the boundary keeps out would have been seen


@pytest.mark.parametrize("attention", Attention)
@pytest.mark.parametrize("family", FAMILIES)
def test_one_document_a_row_is_no_boundary(family: str, attention: Attention) -> None:
    model, tokens = make(family, attention), torch.arange(32).view(2, 16)
    with torch.no_grad():
        torch.testing.assert_close(model(tokens, documents_BS=torch.zeros_like(tokens)), model(tokens))
