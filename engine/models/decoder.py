"""The decoder of the Llama family and of those that are near to it, told apart by `ModelConfig` alone.

One forward pass over a flattened batch of rows, a token each. It knows nothing of requests, sampling, the cache or
which device this is: how a step's rows attend and what their adapters add comes with the batch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import msgspec
import torch
from torch import Tensor

from engine.config import ModelConfig
from engine.lora.layer import DOWN, EXPERTS_DOWN, EXPERTS_GATE_UP, GATE_UP, OUT, QKV, Group
from engine.models.weights import ExpertWeights, GatedWeights, LayerWeights, ModelWeights, Norm, Product
from kernels.activation import clamped_mul, gelu_mul, silu_mul
from kernels.experts import ExpertRows, route, sorted_rows, weighted_sum
from kernels.workspace import Workspace


class StepAttention(Protocol):
    """The positions of one step's rows, the cached tokens each may look at, and the cache of every layer."""

    def attend(self, index: int, layer: LayerWeights, qkv: Tensor) -> Tensor:
        """Attend from qkv [N, heads + 2 * kv_heads, head_dim] as projected -> [N, heads * head_dim].

        qkv may be overwritten. Queries and keys get the layer's norms by head, if it has any, and are rotated, unless
        the layer is one that does not rotate; keys and values are in the cache of layer `index` afterwards.
        """


class StepStates(Protocol):
    """The states of one step's rows, in layers that keep a state in place of keys and values."""

    def recur(self, index: int, layer: LayerWeights, inputs: Tensor) -> Tensor:
        """Go on from the rows' states by the inputs [N, ...] of layer `index` -> [N, num_values] in their dtype.

        Afterwards the states are those after the rows, and the snapshots that the step takes are stored.
        """


class Delta(Protocol):
    """The deltas of the rows' adapters to one group's product."""

    def add_(self, out: Tensor, sizes: Sequence[int]) -> None:
        """Add the delta to out [N, sum(sizes)] in place. sizes: the sizes of the group's outputs, side by side."""

    def silu_mul(self, gate_up: Tensor) -> Tensor:
        """Add the delta to gate and up, then return the gated activation.

        gate_up [N, 2I], may be overwritten -> [N, I].
        """


class ExpertsDelta(Protocol):
    """The deltas of adapters to one group's products of experts."""

    def add_(self, out: Tensor, sizes: Sequence[int]) -> None:
        """Add the delta to out [M, sum(sizes)] in place, as `Delta.add_`."""


class StepLora(Protocol):
    """The adapters of one step's rows."""

    def begin(self, layer: int, group: Group, x: Tensor) -> Delta:
        """Begin the delta of x [N, in], which may compute beside what comes next: the base's product with x.

        Called once for each layer and group in the order of the forward pass.
        """

    def begin_experts(self, layer: int, group: Group, x: Tensor, rows: ExpertRows) -> ExpertsDelta:
        """Begin the delta of x [M, in], rows of experts of the step's rows, to the products of their experts."""


class Batch(msgspec.Struct, frozen=True):
    """The input of one step on the device, N rows."""

    token_ids: Tensor  # [N] integers
    attention: StepAttention
    output_rows: Tensor  # [W] integers
    """The rows whose hidden states are wanted."""
    lora: StepLora | None
    states: StepStates | None = None


class Decoder:
    """Weights of one base model on one device."""

    def __init__(
        self,
        config: ModelConfig,
        weights: ModelWeights,
        activation: Callable[[Tensor], Tensor] | None = None,
        sort_rows: Callable[[Tensor, int], ExpertRows] = sorted_rows,
    ) -> None:
        """Set up the decoder.

        activation: the device's `silu_mul` or `gelu_mul`, as the config says; None: that of `kernels.activation`.
        sort_rows: takes the place of `kernels.experts.sorted_rows`, for products of experts that need more than its
        result.
        """
        self._sort_rows = sort_rows
        self.config = config
        self.weights = weights
        self.dtype = weights.embed.dtype
        self.device = weights.embed.device
        self._is_silu = config.activation == "silu"
        self._activation = activation or (silu_mul if self._is_silu else gelu_mul)
        # As transformers has it for Gemma: a factor of the embedding is a number of the model's own format.
        self._embedding_multiplier = float(torch.tensor(config.embedding_multiplier, dtype=self.dtype))
        self._logits = Workspace(torch.float32, self.device)

    def forward(self, batch: Batch, before: Callable[[int], None] = lambda index: None) -> Tensor:
        """Return the hidden states [W, hidden] of batch.output_rows after the final norm.

        before: called ahead of each layer, with its index.
        """
        x = _scaled(self.weights.embed(batch.token_ids), self._embedding_multiplier)
        for index, layer in enumerate(self.weights.layers):
            before(index)
            attend = self._attend if layer.recurrent is None else self._recur
            x = attend(index, layer, x, batch)
            x = self._feed_forward(index, layer, x, batch.lora)
        return self.weights.norm(x[batch.output_rows])

    def logits(self, hidden: Tensor) -> Tensor:
        """Return the logits of rows that `forward` returned: [W, hidden] -> [W, V] fp32, valid until the next call."""
        logits = self.weights.lm_head(hidden)
        copy: Tensor = self._logits.take(*logits.shape).copy_(logits)
        divided = copy if self.config.logits_divisor == 1.0 else copy.div_(self.config.logits_divisor)
        return bounded_(divided, self.config.logits_softcap)

    def _attend(self, index: int, layer: LayerWeights, x: Tensor, batch: Batch) -> Tensor:
        """Return the residual stream x [N, hidden] after the layer's attention."""
        config, lora = self.config, batch.lora
        normed = x if layer.input_norm is None else layer.input_norm(x)
        delta = None if lora is None else lora.begin(index, QKV, normed)
        qkv = layer.qkv(normed)
        sizes = [number * config.head_dim for number in (config.num_heads, config.num_kv_heads, config.num_kv_heads)]
        gates: Tensor | None = None
        if config.gated_attention:
            if delta is not None:
                delta.add_(qkv, [2 * sizes[0], *sizes[1:]])
            q, gates, kv = torch.split(qkv, [sizes[0], sizes[0], sum(sizes[1:])], 1)
            qkv = torch.cat((q, kv), 1)
        elif delta is not None:
            delta.add_(qkv, sizes)
        if layer.whole_norms is not None:
            q, k, v = torch.split(qkv, sizes, 1)
            qkv = torch.cat((layer.whole_norms[0](q), layer.whole_norms[1](k), v), 1)
        elif layer.q_norm is None:  # a norm has the factor in its weights
            _scaled(qkv[:, : config.num_heads * config.head_dim], config.query_multiplier)
        attended = batch.attention.attend(index, layer, qkv.view(x.shape[0], -1, config.head_dim))
        if gates is not None:
            attended = attended * gates.sigmoid()
        attended = _scaled(attended, config.residual_multiplier)
        delta = None if lora is None else lora.begin(index, OUT, attended)
        return _add_product(layer.o, attended, delta, layer.attention_norm, x)

    def _recur(self, index: int, layer: LayerWeights, x: Tensor, batch: Batch) -> Tensor:
        """Return the residual stream x [N, hidden] after a layer that keeps a state in place of keys and values."""
        recurrence, lora = self.config.recurrence, batch.lora
        assert recurrence is not None and batch.states is not None
        normed = x if layer.input_norm is None else layer.input_norm(x)
        inputs, first = layer.qkv(normed), 0
        if lora is not None:
            for group in recurrence.input_groups:
                sizes = [recurrence.inputs[name] for name in group]
                lora.begin(index, group, normed).add_(inputs[:, first : first + sum(sizes)], sizes)
                first += sum(sizes)
        out = _scaled(batch.states.recur(index, layer, inputs), self.config.residual_multiplier)
        delta = None if lora is None else lora.begin(index, (recurrence.output,), out)
        return _add_product(layer.o, out, delta, layer.attention_norm, x)

    def _feed_forward(self, index: int, layer: LayerWeights, x: Tensor, lora: StepLora | None) -> Tensor:
        """Return the residual stream x [N, hidden] after the layer's feed-forward part.

        lora: the adapters of the rows; None: the base alone.
        """
        normed = x if layer.post_norm is None else layer.post_norm(x)
        if isinstance(layer.feed_forward, ExpertWeights):
            fed = self._experts(index, layer.feed_forward, normed, lora)
            if layer.feed_forward.shared is not None:
                fed += self._shared(index, layer.feed_forward, layer.feed_forward.shared, normed, lora)
            fed = _scaled(fed, self.config.residual_multiplier)
            return (fed if layer.feed_forward_norm is None else layer.feed_forward_norm(fed)) + x
        delta = None if lora is None else lora.begin(index, GATE_UP, normed)
        gate_up = layer.gate_up(normed)
        if delta is not None and self._is_silu:
            activated = delta.silu_mul(gate_up)
        else:
            if delta is not None:
                delta.add_(gate_up, (gate_up.shape[1] // 2,) * 2)
            activated = self._activation(gate_up)
        activated = _scaled(activated, self.config.residual_multiplier)
        delta = None if lora is None else lora.begin(index, DOWN, activated)
        return _add_product(layer.down, activated, delta, layer.feed_forward_norm, x)

    def _experts(self, index: int, weights: ExpertWeights, x: Tensor, lora: StepLora | None) -> Tensor:
        """Return the weighted sum of the outputs of the experts chosen for each row of x [N, hidden].

        lora: the adapters of the rows; None: the base alone.
        """
        experts = self.config.experts
        assert experts is not None
        shares, chosen = route(weights.router(x), experts.chosen, normalized=experts.normalized)
        rows = self._sort_rows(chosen, experts.number)
        x = x.index_select(0, rows.tokens)
        delta = None if lora is None else lora.begin_experts(index, EXPERTS_GATE_UP, x, rows)
        gate_up = weights.gate_up(x, rows)
        if delta is not None:
            delta.add_(gate_up, (gate_up.shape[1] // 2,) * 2)
        gated = self._activation(gate_up) if experts.clamp is None else clamped_mul(gate_up, *experts.clamp)
        delta = None if lora is None else lora.begin_experts(index, EXPERTS_DOWN, gated, rows)
        out = weights.down(gated, rows)
        if delta is not None:
            delta.add_(out, out.shape[1:])
        return weighted_sum(out, rows, shares)

    def _shared(
        self, index: int, weights: ExpertWeights, shared: GatedWeights, x: Tensor, lora: StepLora | None
    ) -> Tensor:
        """Return the output of the shared expert, which all rows of x [N, hidden] go through beside chosen ones.

        lora: the adapters of the rows; None: the base alone.
        """
        delta = None if lora is None else lora.begin(index, GATE_UP, x)
        gate_up = shared.gate_up(x)
        if delta is not None:
            delta.add_(gate_up, (gate_up.shape[1] // 2,) * 2)
        gated = self._activation(gate_up)
        delta = None if lora is None else lora.begin(index, DOWN, gated)
        out = shared.down(gated)
        if delta is not None:
            delta.add_(out, out.shape[1:])
        if weights.shared_gate is None:
            return out
        delta = None if lora is None else lora.begin(index, (self.config.shared_gate,), x)
        factor = weights.shared_gate(x)
        if delta is not None:
            delta.add_(factor, (1,))
        return out * factor.sigmoid()


def bounded_(x: Tensor, cap: float) -> Tensor:
    """Return x, bounded in place by cap tanh(x / cap); as it is where cap is 0."""
    return x if cap == 0.0 else x.div_(cap).tanh_().mul_(cap)


def _add_product(product: Product, x: Tensor, delta: Delta | None, norm: Norm | None, residual: Tensor) -> Tensor:
    """Return the residual stream plus a product of x and its delta; their sum is normed first if there is a norm."""
    out = product.add(x, residual) if norm is None else product(x)
    if delta is not None:
        delta.add_(out, out.shape[1:])
    return out if norm is None else norm(out) + residual


def _scaled(x: Tensor, factor: float) -> Tensor:
    """Return x times a factor, in place; x itself where that is 1, as for all families but Granite and Gemma.

    Inputs of a product are scaled rather than its output: this scales the base's product and the adapter's delta.
    """
    return x if factor == 1.0 else x.mul_(factor)
