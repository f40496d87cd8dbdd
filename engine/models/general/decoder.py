"""One step of a model that transformers computes, over a flattened batch of rows, a token each.

The counterpart of `engine.models.decoder.Decoder`. The rows are one text to transformers, which lets tokens meet in
attention alone: attention over the cache keeps sequences apart, and positions come with the batch.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from engine.config import UnsupportedModel
from engine.models.decoder import StepLora
from engine.models.general.interface import LayerAttention, RotatedAttention, register_hook
from engine.models.general.linears import StepAdapters


class GeneralDecoder:
    """A model of transformers on one device, with our linears in it.

    output_class: the class of the inner model's output.
    """

    def __init__(
        self, model: PreTrainedModel, layers: list[LayerAttention], adapters: StepAdapters, output_class: Any
    ) -> None:
        self.layers = layers
        self.dtype, self.device = model.dtype, model.device
        self._model = model
        self._adapters = adapters
        self._attention: RotatedAttention | None = None
        self._inner = _put_inner(model, output_class)
        self._no_token = torch.zeros(1, 1, dtype=torch.int64, device=self.device)
        register_hook(model, self._attend)

    def forward(
        self,
        token_ids: Tensor,
        positions: Tensor,
        attention: RotatedAttention,
        output_rows: Tensor,
        lora: StepLora | None,
        before: Callable[[int], None] = lambda index: None,
    ) -> Tensor:
        """Return the hidden states [W, hidden] of output_rows after the final norm; token_ids and positions are [N].

        before: called ahead of each layer's attention, with the layer's index. lora: the adapters of the rows; None:
        the base alone.
        """
        self._attention, self._adapters.lora, self._before = attention, lora, before
        try:
            output = self._inner(input_ids=token_ids[None], position_ids=positions[None], use_cache=False)
        finally:
            self._attention = self._adapters.lora = None
        hidden: Tensor = output.last_hidden_state[0]
        return hidden[output_rows]

    def logits(self, hidden: Tensor) -> Tensor:
        """Return the logits of rows that `forward` returned: [W, hidden] -> [W, V] fp32.

        The model's own code computes them, and may scale or cap what the head gives.
        """
        self._inner.given = hidden[None]
        try:
            logits: Tensor = self._model(input_ids=self._no_token, use_cache=False).logits[0]
        finally:
            self._inner.given = None
        return logits.float() if logits.dtype != torch.float32 else logits

    def _attend(self, module: nn.Module, q: Tensor, k: Tensor, v: Tensor, mask: Any, options: dict[str, Any]) -> Tensor:
        index: int = module.layer_idx  # type: ignore[assignment]
        assert self._attention is not None
        self._before(index)
        q, k, v = (each[0].transpose(0, 1) for each in (q, k, v))
        return self._attention.attend_rotated(index, q, k, v, options.get("s_aux"))[None]


def _put_inner(model: PreTrainedModel, output_class: Any) -> _Inner:
    """Put an `_Inner` in the place of a model's inner one, and return it."""
    decoder = model.get_decoder()
    for parent in model.modules():
        for name, child in parent.named_children():
            if child is decoder:
                inner = _Inner(decoder, output_class)
                setattr(parent, name, inner)
                return inner
    raise UnsupportedModel(f"{type(model).__name__} has no decoder apart from its head")


class _Inner(nn.Module):
    """A stand-in for the inner model that computes by it, or returns the hidden states that were put into `given`."""

    def __init__(self, model: nn.Module, output_class: Any) -> None:
        super().__init__()
        self.model = model
        self.given: Tensor | None = None
        self._output_class = output_class

    def __getattr__(self, name: str) -> Any:
        """Return an attribute of the inner model that the head reads, such as a factor."""
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(super().__getattr__("model"), name)

    def forward(self, *args: Any, **options: Any) -> Any:
        if self.given is not None:
            return self._output_class(last_hidden_state=self.given)
        return self.model(*args, **options)
