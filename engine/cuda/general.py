"""A model that transformers computes, on a GPU: its rotated queries and keys through the kernels of the own decoder.

The kernel that rotates and writes the cache turns by no angle here. Steps are launched operation by operation: a model
class that waits for the device somewhere could not be captured in a graph.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple, cast

import msgspec
import torch
from torch import Tensor

from engine.config import EngineConfig, ModelConfig, UnsupportedModel
from engine.cuda.accelerator import Accelerator
from engine.cuda.attention import PagedAttention
from engine.cuda.memory import explain_out_of_memory
from engine.cuda.setup import build_with, check_model
from engine.device import Device
from engine.models.decoder import Batch
from engine.models.general.build import GeneralModel, load_general
from engine.models.general.interface import LayerAttention
from engine.models.weights import LayerWeights


class _NoNorms(NamedTuple):
    """The part of a layer's weights that attention reads, for a layer whose queries and keys come normed."""

    q_norm: None = None
    k_norm: None = None


NO_NORMS = cast(LayerWeights, _NoNorms())


class RotatedRows:
    """The attention of one step for queries and keys that are rotated already (`RotatedAttention`)."""

    def __init__(self, attention: PagedAttention, layers: Sequence[LayerAttention]) -> None:
        self._attention = attention
        self._layers = layers

    def attend_rotated(self, index: int, q: Tensor, k: Tensor, v: Tensor, sinks: Tensor | None) -> Tensor:
        """Attend in layer `index` with its own scaling, by the kernels of the own decoder, without norms.

        sinks: as for `RotatedAttention.attend_rotated`.
        """
        kind = self._layers[index]
        factor = kind.scaling * math.sqrt(kind.head_dim)  # attention divides by the root itself
        q = q if math.isclose(factor, 1.0, rel_tol=1e-9) else q * factor
        return self._attention.attend(index, NO_NORMS, torch.cat((q, k, v), 1)).view(q.shape)


class GeneralStepDecoder:
    """A model of transformers with the interface of `engine.cuda.path.StepDecoder`."""

    def __init__(self, model: GeneralModel) -> None:
        self.config, self._decoder = model
        self.dtype, self.device = self._decoder.dtype, self._decoder.device

    def forward(self, batch: Batch, before: Callable[[int], None] = lambda index: None) -> Tensor:
        """Return the hidden states of the output rows. before: called with each layer's index ahead of the layer."""
        attention = batch.attention
        assert isinstance(attention, PagedAttention)
        rotated = RotatedRows(attention, self._decoder.layers)
        return self._decoder.forward(
            batch.token_ids, attention.angle_rows, rotated, batch.output_rows, batch.lora, before
        )

    def logits(self, hidden: Tensor) -> Tensor:
        """Return the logits of rows of `forward`: [W, hidden] -> [W, V] fp32."""
        return self._decoder.logits(hidden)


def build_general_cuda(
    config: EngineConfig, model: ModelConfig, dtype: torch.dtype, accelerator: Accelerator
) -> Device:
    """Build the GPU's device around a model that transformers computes.

    Raises SetupError: when weights, adapters and cache do not fit on the GPU.
    Raises UnsupportedModel: when the kernels cannot compute one of the model's layers.
    """
    with explain_out_of_memory("loading the weights", "this model needs a larger GPU, or LORIKEET_DTYPE=bfloat16"):
        found, decoder = load_general(config.model_dir, model, dtype, accelerator.device)
    seen = kernels_config(found, decoder.layers)
    check_model(seen, dtype)
    step = GeneralStepDecoder(GeneralModel(seen, decoder))
    device = build_with(config, step, accelerator, use_graphs=False)
    return msgspec.structs.replace(device, model=seen)


def kernels_config(model: ModelConfig, layers: Sequence[LayerAttention]) -> ModelConfig:
    """Return the configuration by which the kernels attend as the model's layers ask for.

    Raises UnsupportedModel: for attention that the kernels for GPUs do not compute.
    """
    first = layers[0]
    for index, layer in enumerate(layers):
        lacking = {
            "bounds its scores in another way than the first layer": layer.cap != first.cap,
            "has sinks": layer.has_sinks,
            "has values of another size than its keys": layer.value_dim != layer.head_dim,
            "has other heads than the first layer": (layer.num_heads, layer.num_kv_heads, layer.head_dim)
            != (first.num_heads, first.num_kv_heads, first.head_dim),
        }
        for what, is_so in lacking.items():
            if is_so:
                raise UnsupportedModel(f"{model.family}: attention of layer {index} {what}, which needs a CPU for now")
    return msgspec.structs.replace(
        model,
        num_heads=first.num_heads,
        num_kv_heads=first.num_kv_heads,
        head_dim=first.head_dim,
        attention_softcap=first.cap or 0.0,
        windows=tuple(layer.window for layer in layers),
        unrotated_layers=tuple(range(len(layers))),
    )
