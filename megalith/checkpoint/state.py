"""A model's and an optimizer's state as one flat mapping from names to tensors, the same in every layout.

Keys: `model.<parameter>` and `optimizer.<parameter>.<slot>` (`exp_avg`, `exp_avg_sq`, `step`, `momentum_buffer`).
Nothing goes by position, so the order of parameters or groups does not matter; hyperparameters come from the recipe.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule

MODEL = "model."
OPTIMIZER = "optimizer."
WRAPPER_PREFIXES = ("_orig_mod.", "_checkpoint_wrapped_module.")


def canonical_name(name: str) -> str:
    """The parameter's name in the plain model: what compile and recompute wrappers insert is taken out."""
    for prefix in WRAPPER_PREFIXES:
        name = name.replace(prefix, "")
    return name


def parameters_by_name(model: nn.Module) -> dict[str, nn.Parameter]:
    """Parameters as the optimizer holds them (sharded where FSDP shards), by canonical name; a tied one once."""
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.reshard()  # a forward without backward may have left whole weights in place of the shards
    return {canonical_name(name): parameter for name, parameter in model.named_parameters()}


def model_state(model: nn.Module) -> dict[str, Tensor]:
    """Every parameter under `model.<name>`; the tensors are the live ones, so loading into them loads the model."""
    return {MODEL + name: parameter.detach() for name, parameter in parameters_by_name(model).items()}


def optimizer_state(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """Every tensor that the optimizer keeps, under `optimizer.<name>.<slot>`."""
    return {
        f"{OPTIMIZER}{name}.{slot}": value
        for name, parameter in parameters_by_name(model).items()
        for slot, value in optimizer.state.get(parameter, {}).items()
        if isinstance(value, Tensor)
    }


def prepare_optimizer_state(
    model: nn.Module, optimizer: torch.optim.Optimizer, keys: Iterable[str]
) -> dict[str, Tensor]:
    """Give a fresh optimizer the slots that `keys` name and return them to be loaded into.

    Every slot starts as NaN, so that one which is not loaded cannot pass for a value. A slot is shaped and sharded as
    its parameter; `step` is a scalar, on the parameter's device where the optimizer is fused. Raises KeyError for a key
    of a parameter that the model lacks.
    """
    parameters = parameters_by_name(model)
    fused = {p: bool(group.get("fused")) for group in optimizer.param_groups for p in group["params"]}
    for key in keys:
        name, slot = key.removeprefix(OPTIMIZER).rsplit(".", 1)
        parameter = parameters[name]
        optimizer.state[parameter][slot] = _empty_slot(parameter, slot, fused.get(parameter, False))
    return optimizer_state(model, optimizer)


def _empty_slot(parameter: nn.Parameter, slot: str, fused: bool) -> Tensor:
    if slot == "step":
        return torch.full((), float("nan"), dtype=torch.float32, device=parameter.device if fused else "cpu")
    return torch.full_like(parameter.detach(), float("nan"))
