"""Megalith: train, plan, adapt, evaluate and serve large language models.

`megalith.train(recipe)` and `megalith.open_model(folder)` are resolved when used, so that `import megalith` is quick
and needs no torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from megalith.opening.model import open_model
    from megalith.training.build import train_recipe as train

__version__ = "0.1.0"
__all__ = ["__version__", "open_model", "train"]


def __getattr__(name: str) -> Any:
    """The public API, imported at first use (PEP 562)."""
    if name == "train":
        return import_module("megalith.training.build").train_recipe
    if name == "open_model":
        return import_module("megalith.opening.model").open_model
    raise AttributeError(f"module 'megalith' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
