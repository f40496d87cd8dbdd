"""The linears of a model, each with the delta of the step's adapters; their names are those by which PEFT knows them.

Linears that a trial saw share their input, such as those of queries, keys and values, are one product: the first that
is called computes for all of them. A linear that is fused in the checkpoint is one module, as it is for PEFT. Knows
nothing of attention.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from adapters.patterns.module_names import ModuleKey, is_of_expert, module_key, module_name
from engine.lora.layer import Group
from engine.models.decoder import StepLora
from kernels.linear import Linear

Calls = dict[ModuleKey, list[Tensor]]  # the inputs of each call of a linear, by layer and name
MOST_TOGETHER = 3
"""The most linears of one product: kernels add the deltas of as many."""


class StepAdapters:
    """The adapters of the step that is being computed, which all linears of a model share.

    calls: while a trial runs, the inputs of each call of a linear, by layer and name; None otherwise.
    """

    def __init__(self) -> None:
        self.lora: StepLora | None = None
        self.calls: Calls | None = None


class AdaptedLinear(nn.Module):
    """A linear of a layer.

    takes_adapters: False once a trial has shown that its rows are not those of the batch.
    """

    def __init__(self, linear: nn.Linear, adapters: StepAdapters, layer: int, name: str) -> None:
        super().__init__()
        self.in_features, self.out_features = linear.in_features, linear.out_features
        self.layer, self.name = layer, name
        self.takes_adapters = True
        self._adapters = adapters
        self._source: nn.Linear | None = linear.requires_grad_(False)
        self._product: FusedProduct | None = None
        self._place = 0

    def forward(self, x: Tensor) -> Tensor:
        """Return the product with x and the adapters' delta: [N, in] -> [N, out]. A trial notes x."""
        if self._adapters.calls is not None:
            self._adapters.calls.setdefault((self.layer, self.name), []).append(x)
        if self._product is not None:
            return self._product.take(self._place, x)
        assert self._source is not None
        out: Tensor = self._source(x)
        return out

    @property
    def weight(self) -> Tensor:
        """The weight [out, in], for a model's code that reads it in a trial."""
        return self.matrix()[0]

    @property
    def bias(self) -> Tensor | None:
        """The bias [out], for a model's code that reads it in a trial; None without one."""
        return self.matrix()[1]

    def settle(self, product: FusedProduct, place: int) -> None:
        """Make the linear one part of a fused product from now on, and drop the linear's own matrix.

        place: the index of the linear among the product's parts.
        """
        self._product, self._place, self._source = product, place, None

    def matrix(self) -> tuple[Tensor, Tensor | None]:
        """Return the weight [out, in] and the bias [out], before the linear is part of a product."""
        assert self._source is not None
        return self._source.weight, self._source.bias


class FusedProduct:
    """The product of one input with the matrices of several linears side by side, and the adapters' deltas to it."""

    def __init__(self, linears: Sequence[AdaptedLinear], adapters: StepAdapters) -> None:
        weights, biases = zip(*(linear.matrix() for linear in linears), strict=True)
        bias = None
        if any(each is not None for each in biases):
            parts = [
                weight.new_zeros(len(weight)) if each is None else each
                for weight, each in zip(weights, biases, strict=True)
            ]
            bias = torch.cat(parts)
        self._product = Linear(weights[0] if len(weights) == 1 else torch.cat(weights), bias)
        self._sizes = [linear.out_features for linear in linears]
        self._width = linears[0].in_features
        self._layer = linears[0].layer
        self._group: Group = tuple(linear.name for linear in linears)
        self._takes_adapters = linears[0].takes_adapters
        self._adapters = adapters
        self._computed: tuple[Tensor, Sequence[Tensor]] | None = None

    def take(self, place: int, x: Tensor) -> Tensor:
        """Return one linear's part of the product with x; the parts of the others are kept until the last is taken.

        place: the index of the linear among the product's parts.
        """
        if self._computed is None or self._computed[0] is not x:
            self._computed = x, self._compute(x)
        part = self._computed[1][place]
        if place == len(self._sizes) - 1:
            self._computed = None
        return part

    def _compute(self, x: Tensor) -> Sequence[Tensor]:
        rows = x.reshape(-1, self._width)
        lora = self._adapters.lora
        delta = lora.begin(self._layer, self._group, rows) if lora is not None and self._takes_adapters else None
        out = self._product(rows)
        if delta is not None:
            delta.add_(out, self._sizes)
        out = out.view(*x.shape[:-1], out.shape[-1])
        return torch.split(out, self._sizes, -1) if len(self._sizes) > 1 else (out,)


class FrozenLinear(nn.Module):
    """A linear that adapters cannot be on, such as the head."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self.in_features, self.out_features = linear.in_features, linear.out_features
        self._product = Linear(linear.weight.detach(), None if linear.bias is None else linear.bias.detach())

    def forward(self, x: Tensor) -> Tensor:
        """Return the product with x: [..., in] -> [..., out]."""
        return self._product(x.reshape(-1, self.in_features)).view(*x.shape[:-1], self.out_features)


def adapt_linears(model: nn.Module, adapters: StepAdapters) -> list[AdaptedLinear]:
    """Put our linears in the places of a model's own, and return those of layers, which a trial has to settle."""
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


def mark_rows(linears: Sequence[AdaptedLinear], calls: Calls, num_rows: int) -> None:
    """Allow adapters only on linears that a trial of num_rows rows has called exactly once, with all of its rows."""
    for linear in linears:
        mine = calls.get((linear.layer, linear.name), [])
        linear.takes_adapters = len(mine) == 1 and mine[0].numel() == num_rows * linear.in_features


def settle_linears(linears: Sequence[AdaptedLinear], calls: Calls, adapters: StepAdapters) -> tuple[Group, ...]:
    """Make products of linears as a trial has called them, and return the groups of names that adapters can be on.

    Linears of one module that were called one after the other with one input are one product, if they are together in
    every layer that has one of them.
    """
    sets = _called_together(linears, calls)
    variants: dict[str, set[Group]] = {}
    for together in sets:
        for name in _names(together):
            variants.setdefault(name, set()).add(_names(together))
    groups: dict[Group, None] = {}
    for together in sets:
        agrees = all(len(variants[name]) == 1 for name in _names(together))
        for parts in [together] if agrees else [[linear] for linear in together]:
            product = FusedProduct(parts, adapters)
            for place, linear in enumerate(parts):
                linear.settle(product, place)
            if parts[0].takes_adapters:
                groups[_names(parts)] = None
    return tuple(groups)


def _called_together(linears: Sequence[AdaptedLinear], calls: Calls) -> list[list[AdaptedLinear]]:
    """Return the linears of all layers in the order of their calls, those that share an input together."""
    order = {key: place for place, key in enumerate(calls)}
    sets: list[list[AdaptedLinear]] = []
    for linear in sorted(linears, key=lambda each: order.get((each.layer, each.name), len(order))):
        if sets and len(sets[-1]) < MOST_TOGETHER and _share(sets[-1][-1], linear, calls):
            sets[-1].append(linear)
        else:
            sets.append([linear])
    return sets


def _names(linears: Sequence[AdaptedLinear]) -> Group:
    return tuple(linear.name for linear in linears)


def _share(first: AdaptedLinear, second: AdaptedLinear, calls: Calls) -> bool:
    """Tell whether two linears of one module were called with one input, and both take adapters or neither does."""
    inputs = [calls.get((linear.layer, linear.name), []) for linear in (first, second)]
    if [len(each) for each in inputs] != [1, 1] or inputs[0][0] is not inputs[1][0]:
        return False
    is_alike = first.layer == second.layer and first.takes_adapters == second.takes_adapters
    return is_alike and _parent(first.name) == _parent(second.name)


def _parent(name: str) -> str:
    return module_name(0, name).rpartition(".")[0]
