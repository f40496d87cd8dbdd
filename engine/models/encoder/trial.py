"""Find out, by a first text through an encoder, how each layer attends and which linears can take adapters.

A linear can take adapters if its rows are those of the step. The trial computes no attention: it returns zeros
instead. A layer that asks for attention which the engine lacks is refused, by a message that names the layer.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from engine.config import UnsupportedModel
from engine.models.encoder.attention import EncoderLayer
from engine.models.encoder.model import encode
from engine.models.general.interface import STEPS, TRIAL, Mask, register_hook
from engine.models.general.linears import Calls, StepAdapters

NUM_ROWS = 6
FAR = 1 << 40
"""A distance between two tokens that is beyond any window."""
_PASSED = {"dropout", "position_ids", "scaling", "sliding_window", "is_causal", "cache_position", "softcap"}


class EncoderFindings(NamedTuple):
    """The results of a trial."""

    layers: list[EncoderLayer]
    """The attention of each layer."""
    order: dict[int, int]
    """The index of each layer's attention in `layers`, by the id of its module."""
    calls: Calls
    """The inputs of each call of a linear, by layer and name."""
    output_class: Any
    """The class of the inner model's output."""


class _Trial:
    """The hook of a trial (`engine.models.general.interface.Hook`), which records how each layer attends."""

    def __init__(self) -> None:
        self.layers: list[EncoderLayer] = []
        self.order: dict[int, int] = {}

    def __call__(
        self, module: nn.Module, q: Tensor, k: Tensor, v: Tensor, mask: Any, options: dict[str, Any]
    ) -> Tensor:
        where = f"layer {len(self.layers)} ({type(module).__name__})"
        if id(module) in self.order:
            raise UnsupportedModel(f"{where} shares its weights with another layer")
        others = sorted(name for name, value in options.items() if name not in _PASSED and _has_effect(value))
        if others or options.get("softcap"):
            raise UnsupportedModel(f"{where} asks for {', '.join(others or ['softcap'])}, which is not supported")
        if options.get("is_causal") or getattr(module, "is_causal", False):
            raise UnsupportedModel(f"{where} attends in one direction alone")
        scaling = options.get("scaling")
        self.order[id(module)] = len(self.layers)
        self.layers.append(
            EncoderLayer(k.shape[3] ** -0.5 if scaling is None else float(scaling), _reach(where, mask, options))
        )
        return q.new_zeros(1, q.shape[2], q.shape[1], v.shape[3])


def try_encoder(model: PreTrainedModel, inner: nn.Module, adapters: StepAdapters, num_layers: int) -> EncoderFindings:
    """Run a text of NUM_ROWS tokens through an encoder, and return how its layers attend and call their linears.

    Raises UnsupportedModel: when a layer asks for attention that the engine does not compute.
    """
    trial = _Trial()
    register_hook(model, trial)
    model.set_attn_implementation(TRIAL)
    calls: Calls = {}
    adapters.calls = calls
    rows = torch.arange(NUM_ROWS, device=model.device)
    try:
        output = encode(inner, rows % model.config.vocab_size, rows + first_position(inner), torch.zeros_like(rows))
    except UnsupportedModel:
        raise
    except Exception as error:  # whatever a model's code raises
        reason = str(error)[:300]
        raise UnsupportedModel(f"{type(model).__name__} cannot compute a text by this config.json: {reason}") from None
    finally:
        adapters.calls = None
        model.set_attn_implementation(STEPS)
    if len(trial.layers) != num_layers:
        raise UnsupportedModel(
            f"{type(model).__name__} attends through transformers' attention interface in {len(trial.layers)} layers "
            f"of {num_layers}"
        )
    return EncoderFindings(trial.layers, trial.order, calls, type(output))


def first_position(inner: nn.Module) -> int:
    """Return the number of a text's first position: 0, or padding_idx + 1 of a position embedding that has one."""
    for name, module in inner.named_modules():
        if name.endswith("position_embeddings") and isinstance(module, nn.Embedding) and module.padding_idx is not None:
            return module.padding_idx + 1
    return 0


def _has_effect(value: Any) -> bool:
    return isinstance(value, Tensor) or bool(value)


def _reach(where: str, mask: Any, options: dict[str, Any]) -> int | None:
    """Return the largest distance at which a token is seen, by transformers' mask; None where all are seen.

    Raises UnsupportedModel: for a mask of another form.
    """
    if mask is None:
        if options.get("sliding_window") is not None:
            raise UnsupportedModel(f"{where} has a window, but no mask")
        return None
    if not isinstance(mask, Mask):
        raise UnsupportedModel(f"{where} adds numbers of its own to the scores: positions by a bias")
    if mask.sees(FAR, 0) and mask.sees(0, FAR):
        return None
    near, far = 0, FAR
    while far - near > 1:
        middle = (near + far) // 2
        near, far = (middle, far) if mask.sees(FAR, FAR - middle) else (near, middle)
    seen = [mask.sees(FAR, FAR + step) for step in (-near - 1, -near, 0, near, near + 1)]
    if seen != [False, True, True, True, False]:
        raise UnsupportedModel(f"{where} attends neither to all tokens nor to those within one distance on both sides")
    return near
