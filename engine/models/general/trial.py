"""Find out, by a first text through a model, how each layer attends and which linears can take adapters.

A linear can take adapters if its rows are those of the batch. The trial computes no attention: it returns zeros
instead. A layer that does not attend by the interface, or asks for what the cache cannot give, is refused by a message
that names the layer.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from engine.config import UnsupportedModel
from engine.models.general.interface import STEPS, TRIAL, LayerAttention, Mask, register_hook
from engine.models.general.linears import Calls, StepAdapters

NUM_ROWS = 6
FAR = 1 << 40
"""A distance between two tokens that is beyond any window."""
# What layers pass to every kind of attention, and what does not change the numbers.
_PASSED = {"dropout", "position_ids", "scaling", "sliding_window", "softcap", "s_aux", "is_causal", "cache_position"}


class Trial:
    """The hook of a trial (`engine.models.general.interface.Hook`), which records how each layer attends."""

    def __init__(self) -> None:
        self.layers: dict[int, LayerAttention] = {}

    def __call__(
        self, module: nn.Module, q: Tensor, k: Tensor, v: Tensor, mask: Any, options: dict[str, Any]
    ) -> Tensor:
        """Record the kind of attention that a layer asks for, and return zeros.

        Raises UnsupportedModel: when the engine does not compute this kind.
        """
        layer = getattr(module, "layer_idx", None)
        if type(layer) is not int:
            raise UnsupportedModel(f"{type(module).__name__} has no layer_idx")
        where = f"layer {layer} ({type(module).__name__})"
        if layer in self.layers:
            raise UnsupportedModel(f"{where} attends more than once")
        if k.shape[2] != q.shape[2]:
            raise UnsupportedModel(f"{where} attends to other tokens than those of the text: cross attention")
        self.layers[layer] = _attention_of(where, module, q, k, v, mask, options)
        return q.new_zeros(1, q.shape[2], q.shape[1], v.shape[3])


class TrialResult(NamedTuple):
    """The results of a trial."""

    layers: list[LayerAttention]
    """The attention of each layer."""
    calls: Calls
    """The inputs of each call of a linear, by layer and name, in the order of the first calls."""
    output_class: Any
    """The class of the inner model's output."""


def try_model(model: PreTrainedModel, adapters: StepAdapters, num_layers: int) -> TrialResult:
    """Run a text of NUM_ROWS tokens through a model, and return how its layers attend and call their linears.

    Raises UnsupportedModel: when a layer's attention is not one that the cache serves.
    """
    trial = Trial()
    register_hook(model, trial)
    model.set_attn_implementation(TRIAL)
    calls: Calls = {}
    adapters.calls = calls
    device = model.device
    ids = torch.arange(NUM_ROWS, device=device)[None]
    try:
        output = model.get_decoder()(input_ids=ids % model.config.vocab_size, position_ids=ids, use_cache=False)
    except UnsupportedModel:
        raise
    except Exception as error:  # whatever a model's code raises where it cannot do without a cache of its own
        name = type(model).__name__
        reason = str(error)[:300]
        raise UnsupportedModel(f"{name} cannot compute a text over our cache by this config.json: {reason}") from None
    finally:
        adapters.calls = None
        model.set_attn_implementation(STEPS)
    absent = [index for index in range(num_layers) if index not in trial.layers]
    if absent:
        raise UnsupportedModel(
            f"{type(model).__name__}: layers {', '.join(map(str, absent[:5]))} of {num_layers} do not attend through "
            "transformers' attention interface; recurrent and convolutional layers are not supported"
        )
    if len(trial.layers) != num_layers:
        raise UnsupportedModel(f"{type(model).__name__} attends in {len(trial.layers)} layers, not in {num_layers}")
    return TrialResult([trial.layers[index] for index in range(num_layers)], calls, type(output))


def _attention_of(
    where: str, module: nn.Module, q: Tensor, k: Tensor, v: Tensor, mask: Any, options: dict[str, Any]
) -> LayerAttention:
    others = sorted(name for name, value in options.items() if name not in _PASSED and _has_effect(value))
    if others:
        raise UnsupportedModel(f"{where} asks for {', '.join(others)}, which attention over our cache does not know")
    if options.get("is_causal") is False or getattr(module, "is_causal", True) is False:
        raise UnsupportedModel(f"{where} attends in both directions")
    if v.shape[3] > k.shape[3]:
        raise UnsupportedModel(f"{where} has values of {v.shape[3]} numbers, wider than its keys of {k.shape[3]}")
    sinks = options.get("s_aux")
    if sinks is not None and tuple(sinks.shape) != (q.shape[1],):
        raise UnsupportedModel(f"{where} has sinks of shape {list(sinks.shape)}")
    scaling, cap = options.get("scaling"), options.get("softcap")
    return LayerAttention(
        num_heads=q.shape[1],
        num_kv_heads=k.shape[1],
        head_dim=k.shape[3],
        value_dim=v.shape[3],
        scaling=k.shape[3] ** -0.5 if scaling is None else float(scaling),
        window=_window(where, mask, options.get("sliding_window")),
        cap=None if cap is None else float(cap),
        has_sinks=sinks is not None,
    )


def _has_effect(value: Any) -> bool:
    return isinstance(value, Tensor) or bool(value)


def _window(where: str, mask: Any, named: Any) -> int | None:
    """Return the window of a layer, by the mask that transformers would make, or as the layer names it without one.

    Raises UnsupportedModel: for a mask of another form, such as chunks, or positions by a bias.
    """
    if mask is None:
        if named is not None and (type(named) is not int or named < 1):
            raise UnsupportedModel(f"{where} has a window of {named!r}")
        return named
    if not isinstance(mask, Mask):
        raise UnsupportedModel(f"{where} adds numbers of its own to the scores: positions by ALiBi or a bias")
    window = None if mask.sees(FAR, 0) else _farthest(mask, FAR) + 1
    span = window or 1024
    for query in (FAR, FAR + span // 2 + 1, 3 * span + 1, span):
        seen = query + 1 if window is None else min(window, query + 1)
        expected = {query: True, query + 1: False, query - seen + 1: True}
        if query - seen >= 0:
            expected[query - seen] = False
        if any(mask.sees(query, key) != is_seen for key, is_seen in expected.items()):
            raise UnsupportedModel(f"{where} attends neither to all tokens before nor to those within a window")
    return window


def _farthest(mask: Mask, query: int) -> int:
    """Return the largest distance at which a token is seen, for a mask that sees all that is nearer.

    query: the position of the token that sees.
    """
    near, far = 0, query
    while far - near > 1:
        middle = (near + far) // 2
        if mask.sees(query, query - middle):
            near = middle
        else:
            far = middle
    return near
