"""An encoder of transformers' on one device: the rows of a step's texts in, hidden states and scores out."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from engine.models.decoder import StepLora
from engine.models.encoder.attention import EncoderLayer, Texts
from engine.models.general.interface import register_hook
from engine.models.general.linears import StepAdapters


class Encoder:
    """A model whose linears are ours. classifier: the whole model, where it has a head that scores."""

    def __init__(
        self,
        inner: PreTrainedModel,
        layers: list[EncoderLayer],
        order: dict[int, int],
        adapters: StepAdapters,
        first_position: int,
        classifier: Classifier | None,
    ) -> None:
        self.dtype, self.device = inner.dtype, inner.device
        self._inner = inner
        self._layers = layers
        self._order = order
        self._adapters = adapters
        self._first_position = first_position
        self._classifier = classifier
        self._texts: Texts | None = None
        register_hook(inner, self._attend)

    def forward(
        self, token_ids: Tensor, positions: Tensor, types: Tensor, texts: Texts, lora: StepLora | None
    ) -> Tensor:
        """Return the hidden states [N, hidden] of all rows; token_ids, positions and types (segments) are [N].

        lora: the adapters of the rows; None: the base alone.
        """
        self._texts, self._adapters.lora = texts, lora
        try:
            output = encode(self._inner, token_ids, positions + self._first_position, types)
        finally:
            self._texts = self._adapters.lora = None
        hidden: Tensor = output.last_hidden_state[0]
        return hidden

    def scores(self, pooled: Tensor) -> Tensor:
        """Return the scores of texts by their pooled hidden states: [T, hidden] -> [T, 1] fp32."""
        assert self._classifier is not None
        return self._classifier.scores(pooled)

    def _attend(self, module: nn.Module, q: Tensor, k: Tensor, v: Tensor, mask: Any, options: dict[str, Any]) -> Tensor:
        assert self._texts is not None
        return self._texts.attend(self._layers[self._order[id(module)]], q, k, v)


class Classifier:
    """A classifier's head, computed by the model's own code on hidden states that the engine gives it.

    To the head each text has one token, whose hidden state is the pooled one.
    """

    def __init__(self, model: PreTrainedModel, inner: PreTrainedModel, output_class: Any) -> None:
        self._model = model
        self._pooler = getattr(inner, "pooler", None)
        self._output_class = output_class
        self._given: Tensor | None = None
        stand_in = _StandIn(self)
        for name, child in list(model.named_children()):
            if child is inner:
                setattr(model, name, stand_in)

    def scores(self, pooled: Tensor) -> Tensor:
        """Return the scores of texts by the model's own head: pooled [T, hidden] -> [T, 1] fp32."""
        self._given = pooled[:, None]
        token = torch.zeros(len(pooled), 1, dtype=torch.int64, device=pooled.device)
        try:
            logits: Tensor = self._model(input_ids=token, attention_mask=torch.ones_like(token)).logits
        finally:
            self._given = None
        return logits.float()

    def output(self) -> Any:
        """Return an output of the inner model's class with the given hidden states, and its pooler's output, if any."""
        assert self._given is not None
        fields = {"last_hidden_state": self._given}
        if self._pooler is not None:
            fields["pooler_output"] = self._pooler(self._given)
        return self._output_class(**fields)


class _StandIn(nn.Module):
    """A module in the place of the inner model, which returns hidden states that are given to it."""

    def __init__(self, classifier: Classifier) -> None:
        super().__init__()
        object.__setattr__(self, "_output", classifier.output)  # not a module of its own

    def forward(self, *args: Any, **options: Any) -> Any:
        output: Callable[[], Any] = self._output  # type: ignore[assignment]
        return output()


def encode(inner: nn.Module, token_ids: Tensor, positions: Tensor, types: Tensor) -> Any:
    """Return the output of an inner model for rows, all of which are one text to it."""
    options = {"position_ids": positions[None]}
    if "token_type_ids" in inspect.signature(inner.forward).parameters:
        options["token_type_ids"] = types[None]
    return inner(input_ids=token_ids[None], **options)
