"""Which parameters decay, by name and whatever their order."""

import pytest
import torch

from megalith.config.model import Activation, ModelConfig, Norm, Position
from megalith.config.recipe import Optimizer, OptimizerName
from megalith.models.decoder import Decoder
from megalith.training.optimizer import build_optimizer, parameter_groups

GPT = ModelConfig(num_layers=2, hidden_size=16, num_attention_heads=2, vocab_size=23, max_seq_len=8)
LLAMA = ModelConfig(
    num_layers=2,
    hidden_size=16,
    num_attention_heads=2,
    vocab_size=23,
    max_seq_len=8,
    position=Position.ROPE,
    norm=Norm.RMSNORM,
    activation=Activation.SWIGLU,
    linear_bias=False,
    qk_norm=True,
    tied_embeddings=False,
)


def names_of(model: torch.nn.Module, group: dict) -> set[str]:
    by_id = {id(p): name for name, p in model.named_parameters()}
    return {by_id[id(p)] for p in group["params"]}


@pytest.mark.parametrize("config", [GPT, LLAMA], ids=["gpt", "llama"])
def test_matrices_decay_norms_and_biases_never(config):
    model = Decoder(config)
    decay, no_decay = parameter_groups(model.named_parameters(), 0.1)
    assert (decay["weight_decay"], no_decay["weight_decay"]) == (0.1, 0.0)
    assert names_of(model, no_decay) == {n for n, _ in model.named_parameters() if "norm" in n or n.endswith("bias")}
    assert "embedding.token.weight" in names_of(model, decay)
    assert len(decay["params"]) + len(no_decay["params"]) == len(list(model.parameters()))


def test_groups_do_not_depend_on_the_order_of_parameters():
    named = list(Decoder(LLAMA).named_parameters())
    forward, backward = parameter_groups(named, 0.1), parameter_groups(reversed(named), 0.1)
    for one, other in zip(forward, backward, strict=True):
        assert [id(p) for p in one["params"]] == [id(p) for p in other["params"]]


def test_wrappers_in_names_change_nothing():
    named = list(Decoder(LLAMA).named_parameters())
    wrapped = [(name.replace("blocks.0.", "blocks.0._orig_mod._checkpoint_wrapped_module."), p) for name, p in named]
    for one, other in zip(parameter_groups(named, 0.1), parameter_groups(wrapped, 0.1), strict=True):
        assert [id(p) for p in one["params"]] == [id(p) for p in other["params"]]


def test_frozen_parameters_are_left_out():
    model = Decoder(GPT)
    model.embedding.requires_grad_(False)
    groups = parameter_groups(model.named_parameters(), 0.1)
    assert all(not names_of(model, group) & {"embedding.token.weight"} for group in groups)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_adamw_takes_the_step_of_its_definition(dtype):
    weight = torch.nn.Linear(3, 2, dtype=dtype)
    before, choice = weight.weight.detach().clone(), Optimizer(lr=0.01, weight_decay=0.1)
    optimizer = build_optimizer(weight, choice)
    weight.weight.grad = gradient = torch.randn_like(weight.weight)
    optimizer.step()
    # first step: both moments are bias-corrected to g and g^2
    expected = before * (1 - 0.01 * 0.1) - 0.01 * gradient / (gradient.abs() + 1e-8)
    torch.testing.assert_close(weight.weight.detach(), expected, rtol=1e-6, atol=0)


def test_sgd_moves_against_the_gradient():
    weight = torch.nn.Linear(3, 2, bias=False, dtype=torch.float64)
    before = weight.weight.detach().clone()
    optimizer = build_optimizer(weight, Optimizer(name=OptimizerName.SGD, lr=0.5, weight_decay=0.0))
    weight.weight.grad = torch.ones_like(weight.weight)
    optimizer.step()
    assert torch.equal(weight.weight.detach(), before - 0.5)
