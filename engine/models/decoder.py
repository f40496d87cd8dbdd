"""The decoder of the Llama family: Llama, Mistral, Qwen2 and Qwen3, told apart by `ModelConfig` alone.

One forward pass over a flattened batch: decode rows first, then the rows of each prefill chunk. It knows nothing of
requests, sampling or where blocks come from.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import torch
from torch import Tensor

from engine.config import ModelConfig
from engine.lora.layer import DOWN, GATE_UP, OUT, QKV, StepLora
from engine.models.rope import RotaryTable
from engine.models.weights import LayerWeights, ModelWeights
from kernels.activation import silu_mul
from kernels.attention import decode_attention, prefill_attention
from kernels.kv_cache import write_kv
from kernels.rope import rope
from kernels.workspace import Workspace


class PrefillRows(msgspec.Struct, frozen=True):
    """One prefill chunk: rows [first, last) of the batch, over C cached positions, its own included."""

    first: int
    last: int
    slots: Tensor  # [C] int64
    visible: Tensor  # [last - first, C] bool


class Batch(msgspec.Struct, frozen=True):
    """One step's input on the device. N rows, of which the first num_decodes are decodes."""

    token_ids: Tensor  # [N] int64
    positions: Tensor  # [N] int64
    slots: Tensor  # [N] int64, where each row's key and value go
    num_decodes: int
    decode_blocks: Tensor  # [num_decodes, B] int64
    decode_hidden: Tensor  # [num_decodes, 1, L] bool, L = B * block_size
    prefills: Sequence[PrefillRows]
    output_rows: Tensor  # [W] int64, rows whose hidden states are wanted
    lora: StepLora | None


class Decoder:
    """Weights and tables of one base model on one device."""

    def __init__(self, config: ModelConfig, weights: ModelWeights, max_model_len: int) -> None:
        self.config = config
        self.weights = weights
        self.dtype = weights.embed.dtype
        self.device = weights.embed.device
        self._gathered = Workspace(self.dtype, self.device)
        self._logits = Workspace(torch.float32, self.device)
        heads = config.num_heads + config.num_kv_heads, config.num_kv_heads
        self._rotary = RotaryTable(config.rope, heads, config.head_dim, max_model_len, self.dtype, self.device)

    def forward(self, batch: Batch, caches: Sequence[Tensor]) -> Tensor:
        """Compute the batch, writing keys and values into caches (one per layer, kernels.kv_cache's layout).

        Returns the hidden states [W, hidden] of batch.output_rows after the final norm.
        """
        rotary = self._rotary.at(batch.positions)
        x = self.weights.embed[batch.token_ids]
        for index, (layer, cache) in enumerate(zip(self.weights.layers, caches, strict=True)):
            x = self._attend(index, layer, x, rotary, batch, cache)
            x = self._feed_forward(index, layer, x, batch.lora)
        return self.weights.norm(x[batch.output_rows])

    def logits(self, hidden: Tensor) -> Tensor:
        """Of rows that `forward` returned: [W, hidden] -> [W, V] fp32, valid until the next call."""
        logits = self.weights.lm_head(hidden)
        return self._logits.take(*logits.shape).copy_(logits)

    def _attend(
        self, index: int, layer: LayerWeights, x: Tensor, rotary: tuple[Tensor, Tensor], batch: Batch, cache: Tensor
    ) -> Tensor:
        """The residual stream x [N, hidden] after the layer's attention."""
        config, lora = self.config, batch.lora
        normed = layer.input_norm(x)
        heads = [config.num_heads, config.num_kv_heads, config.num_kv_heads]
        sizes = [number * config.head_dim for number in heads]
        qkv = layer.qkv(normed)
        if lora is not None:
            lora.add_(index, QKV, normed, qkv, sizes)
        by_head = qkv.view(x.shape[0], -1, config.head_dim)
        if layer.q_norm is not None and layer.k_norm is not None:
            q, k, v = torch.split(by_head, heads, 1)
            by_head = torch.cat((layer.q_norm(q), layer.k_norm(k), v), 1)
        q, kv = torch.split(rope(by_head, *rotary), [heads[0], heads[1] + heads[2]], 1)
        write_kv(cache, kv, batch.slots)
        attended = self._attention(q, cache, batch)
        out = layer.o.add(attended, x)
        if lora is not None:
            lora.add_(index, OUT, attended, out, out.shape[1:])
        return out

    def _attention(self, q: Tensor, cache: Tensor, batch: Batch) -> Tensor:
        parts = [
            prefill_attention(q[rows.first : rows.last], cache, rows.slots, rows.visible) for rows in batch.prefills
        ]
        if batch.num_decodes:
            first = q[: batch.num_decodes]
            decodes = decode_attention(first, cache, batch.decode_blocks, batch.decode_hidden, self._gathered)
            parts.insert(0, decodes)
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def _feed_forward(self, index: int, layer: LayerWeights, x: Tensor, lora: StepLora | None) -> Tensor:
        """The residual stream x [N, hidden] after the layer's feed-forward part."""
        normed = layer.post_norm(x)
        gate_up = layer.gate_up(normed)
        if lora is not None:
            lora.add_(index, GATE_UP, normed, gate_up, (gate_up.shape[1] // 2,) * 2)
        activated = silu_mul(gate_up)
        out = layer.down.add(activated, x)
        if lora is not None:
            lora.add_(index, DOWN, activated, out, out.shape[1:])
        return out
