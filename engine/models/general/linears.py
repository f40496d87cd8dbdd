"""The linears of a model, each with the delta of the step's adapters; their names are those by which PEFT knows them.

A fused linear is one module, as it is for PEFT. Knows nothing of attention.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from adapters.patterns.module_names import is_of_expert, module_key
from engine.lora.layer import Group
from engine.models.decoder import StepLora
from kernels.linear import Linear


class StepAdapters:
    """The adapters of the step that is being computed, which all linears of a model share.

    calls: while a trial runs, the number of rows of each call of a linear, by layer and name; None otherwise.
    """

    def __init__(self) -> None:
        self.lora: StepLora | None = None
        self.calls: dict[tuple[int, str], list[int]] | None = None


class AdaptedLinear(nn.Module):
    """A linear of a layer. Adapters are on it unless the trial has shown that its rows are not those of the batch."""

    def __init__(self, linear: nn.Linear, adapters: StepAdapters, layer: int, name: str) -> None:
        super().__init__()
        self.in_features, self.out_features = linear.in_features, linear.out_features
        self.layer, self.name = layer, name
        self.takes_adapters = True
        self._group: Group = (name,)
        self._adapters = adapters
        self._product = _product(linear)

    def forward(self, x: Tensor) -> Tensor:
        rows = x.reshape(-1, self.in_features)
        if self._adapters.calls is not None:
            self._adapters.calls.setdefault((self.layer, self.name), []).append(len(rows))
        lora = self._adapters.lora
        delta = lora.begin(self.layer, self._group, rows) if lora is not None and self.takes_adapters else None
        out = self._product(rows)
        if delta is not None:
            delta.add_(out, (self.out_features,))
        return out.view(*x.shape[:-1], self.out_features)


class FrozenLinear(nn.Module):
    """A linear that adapters cannot be on, such as the head."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self.in_features, self.out_features = linear.in_features, linear.out_features
        self._product = _product(linear)

    def forward(self, x: Tensor) -> Tensor:
        return self._product(x.reshape(-1, self.in_features)).view(*x.shape[:-1], self.out_features)


def adapt_linears(model: nn.Module, adapters: StepAdapters) -> list[AdaptedLinear]:
    """Put our linears in the places of a model's own, and return those of layers."""
    adapted = []
    for parent_name, parent in list(model.named_modules()):
        for child_name, child in list(parent.named_children()):
            if type(child) is not nn.Linear:
                continue
            name = f"{parent_name}.{child_name}" if parent_name else child_name
            key = module_key(name)
            if key is None or is_of_expert(key[1]):
                setattr(parent, child_name, FrozenLinear(child))
            else:
                linear = AdaptedLinear(child, adapters, *key)
                setattr(parent, child_name, linear)
                adapted.append(linear)
    return adapted


def _product(linear: nn.Linear) -> Linear:
    bias = linear.bias
    return Linear(linear.weight.detach(), None if bias is None else bias.detach())


def takes_rows_of_the_batch(calls: dict[tuple[int, str], list[int]], linear: AdaptedLinear, num_rows: int) -> bool:
    """Tell whether a trial of so many rows has called a linear once, with all of them."""
    return calls.get((linear.layer, linear.name)) == [num_rows]


def narrowest(dtype: torch.dtype) -> float:
    """Return the distance of 1 to the next number of a dtype."""
    return torch.finfo(dtype).eps
