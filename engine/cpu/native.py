"""Computes the hidden states of a plan by the native kernels, in one call (`engine.model_runner.DevicePath`).

Adapters are multiplied where they lie: nothing of them is copied, and rows need no order. A step can pause between two
jobs of the kernels: it has memory of its own, and others are computed meanwhile.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from collections.abc import Sequence as Many
from weakref import WeakKeyDictionary

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from engine.config import ModelConfig
from engine.config.cache_layout import CacheLayout, Place, one_table
from engine.cpu.threads import AdaptedThreads
from engine.device import Pause
from engine.lora.layer import GROUPS, LoadedAdapter
from engine.models.decoder import bounded_
from engine.models.rope import cos_and_sin, query_factors
from engine.models.weights import LayerWeights, ModelWeights, Norm, Product
from engine.sequence import Plan, Sequence
from engine.transfers import Event, PastEvent
from kernels.cpu.decoder import (
    CACHE_BLOCK,
    CHUNK_FIELDS,
    FACTORS,
    NUM_PROJECTIONS,
    DecoderShape,
    LayerTensors,
    NativeDecoder,
    NativeStep,
    dtype_number,
)
from kernels.cpu.library import NativeLibrary
from kernels.cpu.linear import NativeEmbedding, NativeLinear
from kernels.norm import RmsNorm
from kernels.workspace import Workspace

_PROJECTIONS = [name for group in GROUPS for name in group]
_Factors = NDArray[np.void]
_InUse = list[tuple[LoadedAdapter, _Factors]]
"""Adapters, each with the addresses of its matrices, that stay as they are while a step reads them."""


class NativePath:
    """Computes plans by the native kernels, and owns the cache.

    adapter_in: returns the adapter that a slot of the pool holds. threads: None keeps PyTorch's number of threads.
    """

    def __init__(
        self,
        decoder: NativeDecoder,
        config: ModelConfig,
        lm_head: Product,
        adapter_in: Callable[[int], LoadedAdapter],
        threads: AdaptedThreads | None = None,
    ) -> None:
        self._decoder = decoder
        self._config = config
        self._lm_head = _native_linear(lm_head)
        self._adapter_in = adapter_in
        self._threads = threads
        self._factors: WeakKeyDictionary[LoadedAdapter, _Factors] = WeakKeyDictionary()
        self._in_use: _InUse = []
        self._paused_in_use: _InUse = []
        self._pausing: NativeDecoder | None = None
        cpu = torch.device("cpu")
        self._hidden, self._logits = Workspace(torch.float32, cpu), Workspace(torch.float32, cpu)
        self._paused_hidden = Workspace(torch.float32, cpu)

    @property
    def feeds(self) -> bool:
        """False: no token goes from one step to the next on the device, since a step is done when it is launched."""
        return False

    @property
    def halfway(self) -> Event:
        """Return an event that has happened already, since a step is done when it is launched."""
        return PastEvent()

    def replays(self, plan: Plan, num_outputs: int) -> bool:
        """Return False: a step is launched operation by operation."""
        return False

    def feed(self, token_ids: Tensor, sequences: Many[Sequence]) -> None:
        """Raise NotImplementedError: on a CPU tokens go over the host."""
        raise NotImplementedError("tokens go over the host")

    def order(self, plan: Plan) -> Many[int]:
        """Return the places of decodes as the plan has them."""
        return range(len(plan.decodes))

    def forward(self, plan: Plan, output_rows: Many[int]) -> Tensor:
        """Return the hidden states [W, hidden] of these rows of a plan, valid until the next call."""
        hidden = self._hidden.take(len(output_rows), self._config.hidden_size)
        step, in_use = self._begin(self._decoder, plan, output_rows, hidden)
        step.go_on()
        self._in_use = in_use  # the buffers of the step before are let go of when this step is over
        return hidden

    def begin(self, plan: Plan, output_rows: Many[int]) -> NativeForward | None:
        """Begin a plan's hidden states, as `forward` returns them, in parts; give up the plan that was begun before.

        Return None if there is no memory for a second step.
        """
        try:
            if self._pausing is None:
                self._pausing = self._decoder.twin()
            hidden = self._paused_hidden.take(len(output_rows), self._config.hidden_size)
            # When this plan's rows are taken, nothing reads the adapters of the one before any more.
            step, self._paused_in_use = self._begin(self._pausing, plan, output_rows, hidden)
        except MemoryError:
            return None
        return NativeForward(step, hidden, self._threads)

    def _begin(
        self, decoder: NativeDecoder, plan: Plan, output_rows: Many[int], hidden: Tensor
    ) -> tuple[NativeStep, _InUse]:
        """Begin a plan's step on a decoder; return it with the adapters that it reads."""
        if self._threads is not None:
            self._threads.adapt()
        tokens: list[int] = []
        fields: list[tuple[int, ...]] = []
        tables: list[list[int]] = []
        num_blocks = 0
        in_use: _InUse = []
        for chunk in plan.chunks:
            length = -(-(chunk.first + chunk.num_tokens) // CACHE_BLOCK)
            address = 0
            if chunk.sequence.adapter_slot is not None:
                in_use.append(self._adapter(chunk.sequence.adapter_slot))
                address = in_use[-1][1].ctypes.data
            angle = chunk.first + chunk.sequence.is_long * self._config.length_switch
            fields.append((len(tokens), chunk.num_tokens, chunk.first, angle, num_blocks, length, address))
            tokens += chunk.token_ids
            tables += [table[:length] for table in chunk.sequence.block_tables]
            num_blocks += decoder.num_tables * length
        step = decoder.begin(
            np.array(tokens, dtype=np.int64),
            np.array(fields, dtype=np.int64).reshape(-1, CHUNK_FIELDS),
            np.fromiter(itertools.chain.from_iterable(tables), dtype=np.int32, count=num_blocks),
            np.array(output_rows, dtype=np.int64),
            hidden,
        )
        return step, in_use

    def logits(self, hidden: Tensor) -> Tensor:
        """Return the logits of rows of `forward`: [W, hidden] -> [W, V] fp32, valid until the next call."""
        logits = self._lm_head.write(hidden, self._logits.take(len(hidden), self._config.vocab_size))
        divided = logits if self._config.logits_divisor == 1.0 else logits.div_(self._config.logits_divisor)
        return bounded_(divided, self._config.logits_softcap)

    def _adapter(self, slot: int) -> tuple[LoadedAdapter, _Factors]:
        """Return the adapter of a slot, and the addresses of its matrices."""
        adapter = self._adapter_in(slot)
        factors = self._factors.get(adapter)
        if factors is None:
            factors = self._factors[adapter] = factors_of(adapter, self._config.num_layers)
        return adapter, factors


class NativeForward:
    """Hidden states that the native kernels compute in one or more parts (`engine.device.PausableForward`)."""

    def __init__(self, step: NativeStep, hidden: Tensor, threads: AdaptedThreads | None) -> None:
        self.hidden = hidden
        self._step = step
        self._threads = threads

    def go_on(self, pause: Pause | None = None, seconds: float = math.inf) -> bool:
        """Compute on, until the pause is asked for or the seconds are over; return True once all is computed."""
        if self._threads is not None:
            self._threads.adapt()
        return self._step.go_on(None if pause is None else pause.address, seconds)


def factors_of(adapter: LoadedAdapter, num_layers: int) -> _Factors:
    """Return the addresses of an adapter's matrices, [num_layers * NUM_PROJECTIONS] of FACTORS."""
    factors = np.zeros(num_layers * NUM_PROJECTIONS, dtype=FACTORS)
    dtype = dtype_number(adapter.weights.dtype)
    for (layer, group), weights in adapter.groups.items():
        first = 0
        for p, b, scaling in zip(weights.projections, weights.bs, adapter.scalings[layer, group], strict=True):
            rank = b.shape[0]
            place = layer * NUM_PROJECTIONS + _PROJECTIONS.index(group[p])
            factors[place] = (weights.a[first:].data_ptr(), b.data_ptr(), rank, scaling, dtype)
            first += rank
    return factors


def make_decoder(
    library: NativeLibrary,
    config: ModelConfig,
    weights: ModelWeights,
    num_blocks: int,
    max_position: int,
    path: str | None = None,
    cache_dtype: torch.dtype | None = None,
    layout: CacheLayout | None = None,
) -> NativeDecoder:
    """Return a model's layers with a cache of num_blocks blocks.

    weights: with quantized products.
    path: as for `NativeDecoder`.
    cache_dtype: the dtype of keys and values; None: the model's.
    layout: the layout by which layers share the blocks; None: each layer has all of them.

    Raises ValueError: when the native kernels do not compute this model.
    """
    embed = weights.embed
    assert isinstance(embed, NativeEmbedding)
    shape = DecoderShape(
        num_heads=config.num_heads,
        num_kv_heads=config.num_kv_heads,
        head_dim=config.head_dim,
        intermediate_size=config.intermediate_size,
        max_position=max_position,
        num_blocks=num_blocks,
        cache_dtype=cache_dtype or embed.dtype,
        activation=config.activation,
        eps=config.rms_norm_eps,
        # As transformers has it for Gemma: a factor of the embedding is a number of the model's own format.
        embedding_multiplier=float(torch.tensor(config.embedding_multiplier, dtype=embed.dtype)),
        query_multiplier=config.query_multiplier,
        residual_multiplier=config.residual_multiplier,
        softcap=config.attention_softcap,
        has_whole_norms=config.whole_qk_norm,
    )
    ropes = {config.rope_of(index) for index in range(config.num_layers)}
    angles = {rope: cos_and_sin(rope, config.head_dim, max_position) for rope in ropes}
    layout = layout or one_table({index: config.window(index) for index in range(config.num_layers)})
    layers = []
    for index, layer in enumerate(weights.layers):
        rotated = None if index in config.unrotated_layers else angles[config.rope_of(index)]
        layers.append(_tensors(layer, rotated, config.window(index), layout.places[index]))
    factors = query_factors(config, max_position)
    return NativeDecoder(library, shape, embed.table, layers, _weight(weights.norm), path, factors)


def _tensors(
    layer: LayerWeights, angles: tuple[Tensor, Tensor] | None, window: int | None, place: Place
) -> LayerTensors:
    q_norm, k_norm = layer.whole_norms or (layer.q_norm, layer.k_norm)
    return LayerTensors(
        products=(
            _native_linear(layer.qkv),
            _native_linear(layer.o),
            _native_linear(layer.gate_up),
            _native_linear(layer.down),
        ),
        input_norm=_optional_weight(layer.input_norm),
        q_norm=_optional_weight(q_norm),
        k_norm=_optional_weight(k_norm),
        attention_norm=_optional_weight(layer.attention_norm),
        post_norm=_optional_weight(layer.post_norm),
        feed_forward_norm=_optional_weight(layer.feed_forward_norm),
        angles=angles,
        window=window,
        table=place.table,
        cache=place.depth,
    )


def _optional_weight(norm: Norm | None) -> Tensor | None:
    return None if norm is None else _weight(norm)


def _weight(norm: Norm) -> Tensor:
    assert isinstance(norm, RmsNorm)
    return norm.weight.float().contiguous()


def _native_linear(product: Product) -> NativeLinear:
    assert isinstance(product, NativeLinear)
    return product
