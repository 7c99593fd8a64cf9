"""Read FLOPs, collectives and live bytes off whatever runs, real or fake, one op at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from torch import Tensor, UntypedStorage
from torch._ops import OpOverload
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry
from torch.utils.weak import WeakIdKeyDictionary

from megalith.parallel.costs import Collective, collectives_of


class Meter(TorchDispatchMode):
    """Counts while entered. Our custom ops are single ops here: what they do inside, and use meanwhile, is not seen.

    A storage is counted from the op that made it until nothing holds it; one that an op took without having been made
    here (weights, tables, whatever was there before) never is.
    """

    def __init__(self) -> None:
        super().__init__()
        self.flops = 0
        self.collectives: list[Collective] = []
        self.peak_bytes = 0
        self._made_here = WeakIdKeyDictionary()  # UntypedStorage -> whether an op made it while the meter ran

    def __torch_dispatch__(
        self, func: Callable[..., Any], types: Any, args: tuple = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if any(issubclass(kind, DTensor) for kind in types):
            return NotImplemented  # DTensor unpacks itself first; what it then runs on local tensors comes here
        for storage in _storages((args, kwargs)):
            self._made_here.setdefault(storage, False)
        out = func(*args, **kwargs)
        for storage in _storages(out):
            self._made_here.setdefault(storage, True)
        if isinstance(func, OpOverload):
            formula = flop_registry.get(func.overloadpacket)
            self.flops += formula(*args, **kwargs, out_val=out) if formula else 0
            self.collectives += collectives_of(func, args)
        self.peak_bytes = max(self.peak_bytes, self.live_bytes())
        return out

    def live_bytes(self) -> int:
        """Bytes of the storages made here that something still holds."""
        return sum(storage.nbytes() for storage, here in self._made_here.items() if here)


def _storages(values: Any) -> Iterator[UntypedStorage]:
    for value in tree_leaves(values):
        if isinstance(value, Tensor):
            yield (value._local_tensor if isinstance(value, DTensor) else value).untyped_storage()
