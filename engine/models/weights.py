"""A base model's weights, as the tensors that a step multiplies. `engine.models.checkpoint` reads them.

Projections that share an input are fused: q, k, v into one matrix, gate and up into another.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Protocol, overload

import msgspec
import torch
from torch import Tensor

from engine.config import ModelConfig
from engine.config.model import Experts
from engine.config.recurrence import Recurrence
from kernels.experts import ExpertRows, GroupedLinear, segments
from kernels.linear import Embedding, Linear


class Norm(Protocol):
    """A root-mean-square norm of the last dimension, as `kernels.norm.RmsNorm`."""

    def __call__(self, x: Tensor) -> Tensor:
        """Return the norm of x [..., H]."""


class Product(Protocol):
    """A product with a frozen matrix, as `kernels.linear.Linear`."""

    def __call__(self, x: Tensor) -> Tensor:
        """Return the product with x: [N, in] -> [N, out]."""

    def add(self, x: Tensor, y: Tensor) -> Tensor:
        """Return the product with x, added to y [N, out]."""


class GroupedProduct(Protocol):
    """Products of the rows of several experts with the matrix of each, as `kernels.experts.GroupedLinear`."""

    def __call__(self, x: Tensor, rows: ExpertRows) -> Tensor:
        """Return the product of each row of x with the matrix of the row's expert: [M, in] -> [M, out]."""


class TokenRows(Protocol):
    """The embedding of each token, a row of a table, as `kernels.linear.Embedding`."""

    dtype: torch.dtype
    """The dtype of the rows, and of the model."""
    device: torch.device

    def __call__(self, token_ids: Tensor) -> Tensor:
        """Return the rows of tokens: [N] -> [N, H]."""


Take = Callable[[str, tuple[int, ...]], Tensor]  # a tensor of this shape by its name in Hugging Face's checkpoints


class StackedMatrices:
    """Matrices of one number of inputs, one below the other, that are read when they are asked for.

    names: the matrices' names in Hugging Face's checkpoints; shapes: [out, in] of each.
    """

    def __init__(self, take: Take, names: Sequence[str], shapes: Sequence[tuple[int, int]]) -> None:
        self.names, self.shapes = tuple(names), tuple(shapes)
        self._take = take

    @cached_property
    def tensor(self) -> Tensor:
        """The matrices as one tensor, which is read once."""
        return self.read(range(len(self.names)))

    def select(self, which: Sequence[int]) -> StackedMatrices:
        """Return some of the matrices, which are not read yet."""
        return StackedMatrices(self._take, [self.names[each] for each in which], [self.shapes[each] for each in which])

    def read(self, which: Sequence[int]) -> Tensor:
        """Return some of the matrices as one tensor, read anew."""
        found = [self._take(self.names[each], self.shapes[each]) for each in which]
        return found[0] if len(found) == 1 else torch.cat(found)


MakeLinear = Callable[[StackedMatrices, Tensor | None], Product]  # of matrices and the bias of all their outputs
# Of a table [V, H], and the product with the same table where the head is tied to it.
MakeEmbedding = Callable[[StackedMatrices, Product | None], TokenRows]
# Of all experts' matrices, one below the other, the biases of all outputs, and the number of experts.
MakeGrouped = Callable[[StackedMatrices, Tensor | None, int], GroupedProduct]
MakeNorm = Callable[[Tensor, float], Norm]  # of a weight and its epsilon


class GatedWeights(msgspec.Struct, frozen=True):
    """The feed-forward part of a layer."""

    gate_up: Product  # H -> 2I
    down: Product  # I -> H


class ExpertWeights(msgspec.Struct, frozen=True):
    """The feed-forward parts of a layer of which a router chooses some for each token; E of them."""

    router: Product  # H -> E
    gate_up: GroupedProduct  # H -> 2I
    down: GroupedProduct  # I -> H
    shared: GatedWeights | None = None  # of all tokens
    shared_gate: Product | None = None  # H -> 1


class RecurrentWeights(msgspec.Struct, frozen=True):
    """The weights of a layer with a state, beside its products; all in fp32 (`engine.config.recurrence`)."""

    conv: Tensor  # [conv_width, num_channels]
    conv_bias: Tensor | None  # [num_channels]
    decay: Tensor  # [num_heads], below 0
    step_bias: Tensor  # [num_heads]
    skip: Tensor | None  # [num_heads], the factor of the values that are added to the output: Mamba-2
    norm: Tensor  # [value_dim] of each head, or of Mamba-2 [num_values]


class LayerWeights(msgspec.Struct, frozen=True):
    """The weights of one decoder layer. H hidden, Q = heads * D, K = kv_heads * D, I intermediate.

    In a layer with a state, the first product gives the state's inputs, and the second takes its output.
    """

    input_norm: Norm | None  # [H]
    qkv: Product  # H -> Q + 2K, or 2Q + 2K where queries come with gates
    q_norm: Norm | None  # [D]
    k_norm: Norm | None  # [D]
    whole_norms: tuple[Norm, Norm] | None  # [Q] and [K], of all heads together
    o: Product  # Q -> H
    attention_norm: Norm | None  # [H], of attention's output
    post_norm: Norm | None  # [H]
    feed_forward: GatedWeights | ExpertWeights
    feed_forward_norm: Norm | None  # [H], of the feed-forward part's output
    sinks: Tensor | None = None  # [heads]
    recurrent: RecurrentWeights | None = None  # None of a layer that attends

    @property
    def gated(self) -> GatedWeights:
        """The feed-forward part of a layer without experts."""
        assert isinstance(self.feed_forward, GatedWeights)
        return self.feed_forward

    @property
    def gate_up(self) -> Product:
        """The product of gate and up, side by side, of a layer without experts."""
        return self.gated.gate_up

    @property
    def down(self) -> Product:
        """The product of down of a layer without experts."""
        return self.gated.down


class ModelWeights(msgspec.Struct, frozen=True):
    """The weights of a decoder. V size of the vocabulary, H hidden."""

    embed: TokenRows  # V rows of H
    layers: Sequence[LayerWeights]
    norm: Norm  # [H]
    lm_head: Product  # H -> V; of the embedding where they are tied


class LayersInTurn(Sequence[LayerWeights]):
    """Layers that are read anew whenever they are asked for, and not kept."""

    def __init__(self, read: Callable[[int], LayerWeights], num_layers: int) -> None:
        self._read = read
        self._indices = range(num_layers)

    def __len__(self) -> int:
        return len(self._indices)

    @overload
    def __getitem__(self, index: int) -> LayerWeights: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[LayerWeights]: ...
    def __getitem__(self, index: int | slice) -> LayerWeights | Sequence[LayerWeights]:
        return (
            [self._read(each) for each in self._indices[index]]
            if isinstance(index, slice)
            else self._read(self._indices[index])
        )


def plain_linear(matrices: StackedMatrices, bias: Tensor | None) -> Product:
    """Return the product with the matrices in the format of the file.

    bias: [out]; None without one.
    """
    return Linear(matrices.tensor, bias)


def plain_grouped(matrices: StackedMatrices, bias: Tensor | None, number: int) -> GroupedProduct:
    """Return the products with the matrices of experts in the format of the file.

    bias: [E * out], expert by expert; None without one. number: the number of experts.
    """
    return GroupedLinear(*by_expert(matrices, bias, number))


def parts_of_expert(matrices: StackedMatrices, number: int) -> list[range]:
    """Return for each of a number of experts the indexes of its matrices among all."""
    each = len(matrices.names) // number
    return [range(expert * each, (expert + 1) * each) for expert in range(number)]


class GroupedInTurn:
    """Products with the matrices of experts that are made anew whenever a row asks for them, and not kept.

    linear: makes the product with an expert's matrices. bias: one for each expert; None without. number: the number of
    experts.
    """

    def __init__(self, linear: MakeLinear, matrices: StackedMatrices, bias: Tensor | None, number: int) -> None:
        self._linear, self._matrices = linear, matrices
        self._parts = parts_of_expert(matrices, number)
        self._bias = None if bias is None else bias.view(number, -1)

    def __call__(self, x: Tensor, rows: ExpertRows) -> Tensor:
        """Multiply each row of x [M, in] by its expert's matrix, and return the result [M, out]."""
        found = []
        for expert, first, last in segments(rows):
            bias = None if self._bias is None else self._bias[expert]
            found.append(self._linear(self._matrices.select(self._parts[expert]), bias)(x[first:last]))
        return torch.cat(found)


def by_expert(matrices: StackedMatrices, bias: Tensor | None, number: int) -> tuple[Tensor, Tensor | None]:
    """Return the matrices of a number of experts as [E, out, in], and the biases as [E, out].

    matrices, bias: those of all experts, one expert after the other; the bias is None without one. number: the number
    of experts.
    """
    outputs = sum(height for height, _ in matrices.shapes) // number
    return matrices.tensor.view(number, outputs, -1), None if bias is None else bias.view(number, outputs)


def plain_embedding(table: StackedMatrices, head: Product | None) -> TokenRows:
    """Return the embedding with the table in the format of the file.

    head: not read; the head is a product of its own.
    """
    return Embedding(table.tensor)


def assemble(
    take: Take,
    config: ModelConfig,
    make_norm: MakeNorm,
    make_linear: MakeLinear = plain_linear,
    make_embedding: MakeEmbedding = plain_embedding,
    make_grouped: MakeGrouped = plain_grouped,
    *,
    in_turn: bool = False,
) -> ModelWeights:
    """Return every tensor of a model, fused.

    in_turn: True: each layer is read whenever it is used, and not kept. take: returns a tensor by its name and shape.
    make_norm, make_linear, make_embedding, make_grouped: as for `load_weights`.
    """
    hidden = config.hidden_size
    table = StackedMatrices(take, ("model.embed_tokens.weight",), ((config.vocab_size, hidden),))
    each = LayersInTurn(
        lambda index: _layer(take, config, index, make_norm, make_linear, make_grouped), config.num_layers
    )
    layers = each if in_turn else list(each)
    norm = make_norm(_norm_weight(take, "model.norm", hidden, config), config.rms_norm_eps)
    is_tied = config.tie_word_embeddings
    head = make_linear(table if is_tied else StackedMatrices(take, ("lm_head.weight",), table.shapes), None)
    return ModelWeights(make_embedding(table, head if is_tied else None), layers, norm, head)


def _layer(
    take: Take,
    config: ModelConfig,
    index: int,
    make_norm: MakeNorm,
    make_linear: MakeLinear,
    make_grouped: MakeGrouped,
) -> LayerWeights:
    prefix, hidden = f"model.layers.{index}", config.hidden_size

    def matrices(block: str, *projections: str) -> StackedMatrices:
        names = [f"{prefix}.{block}.{projection}.weight" for projection in projections]
        widths, heights = zip(*(config.projection_shapes()[projection] for projection in projections), strict=True)
        return StackedMatrices(take, names, list(zip(heights, widths, strict=True)))

    def bias(projection: str) -> Tensor:
        return take(f"{prefix}.self_attn.{projection}.bias", (config.projection_shapes()[projection][1],))

    def norm(name: str, size: int, factor: float = 1.0) -> Norm:
        return make_norm(_norm_weight(take, f"{prefix}.{name}", size, config) * factor, config.rms_norm_eps)

    def layer_norm(name: str) -> Norm | None:
        return norm(name, hidden) if name else None

    def gated() -> GatedWeights:
        return GatedWeights(
            make_linear(matrices("mlp", "gate_proj", "up_proj"), None),
            make_linear(matrices("mlp", "down_proj"), None),
        )

    def feed_forward() -> GatedWeights | ExpertWeights:
        if config.experts is None:
            return gated()
        experts = _experts(take, config, config.experts, prefix, make_grouped)
        if not config.shared_size:
            return experts
        gate = config.shared_gate
        factor = Linear(take(f"{prefix}.{gate}.weight", (1, hidden)), None) if gate else None
        return msgspec.structs.replace(experts, shared=gated(), shared_gate=factor)

    if config.recurrence is not None and index in config.recurrence.layers:
        inputs, output, recurrent = _recurrent(take, config, config.recurrence, prefix, make_linear)
        return LayerWeights(
            input_norm=layer_norm(config.norms.before_attention),
            qkv=inputs,
            q_norm=None,
            k_norm=None,
            whole_norms=None,
            o=output,
            attention_norm=layer_norm(config.norms.after_attention),
            post_norm=layer_norm(config.norms.before_feed_forward),
            feed_forward=feed_forward(),
            feed_forward_norm=layer_norm(config.norms.after_feed_forward),
            recurrent=recurrent,
        )
    qkv = ("q_proj", "k_proj", "v_proj")
    q_size, k_size = (config.projection_shapes()[name][1] for name in qkv[:2])
    whole = (
        (norm("self_attn.q_norm", q_size, config.query_multiplier), norm("self_attn.k_norm", k_size))
        if config.whole_qk_norm
        else None
    )
    return LayerWeights(
        input_norm=layer_norm(config.norms.before_attention),
        qkv=make_linear(
            matrices("self_attn", *qkv),
            torch.cat([bias(name) for name in qkv]) if config.qkv_bias else None,
        ),
        q_norm=norm("self_attn.q_norm", config.head_dim, config.query_multiplier) if config.qk_norm else None,
        k_norm=norm("self_attn.k_norm", config.head_dim) if config.qk_norm else None,
        whole_norms=whole,
        # The decoder scales what goes into this product, which leaves its bias to be scaled here.
        o=make_linear(
            matrices("self_attn", "o_proj"), bias("o_proj") * config.residual_multiplier if config.o_bias else None
        ),
        attention_norm=layer_norm(config.norms.after_attention),
        post_norm=layer_norm(config.norms.before_feed_forward),
        feed_forward=feed_forward(),
        feed_forward_norm=layer_norm(config.norms.after_feed_forward),
        sinks=take(f"{prefix}.self_attn.sinks", (config.num_heads,)) if config.has_sinks else None,
    )


def _recurrent(
    take: Take, config: ModelConfig, recurrence: Recurrence, prefix: str, make_linear: MakeLinear
) -> tuple[Product, Product, RecurrentWeights]:
    """Return the products before and after the state of a layer, and the layer's other weights."""
    hidden, block = config.hidden_size, f"{prefix}.{recurrence.block}"
    heads, channels, width = recurrence.num_heads, recurrence.num_channels, recurrence.conv_width
    is_mamba, has_bias = recurrence.kind == "mamba2", recurrence.has_proj_bias

    def bias(name: str, outputs: int) -> Tensor | None:
        return take(f"{prefix}.{name}.bias", (outputs,)) if has_bias else None

    names = recurrence.inputs
    matrices = StackedMatrices(
        take, [f"{prefix}.{name}.weight" for name in names], [(outputs, hidden) for outputs in names.values()]
    )
    # No model with several matrices has biases.
    inputs = make_linear(matrices, bias(next(iter(names)), sum(names.values())))
    output_bias = bias(recurrence.output, hidden)
    output = make_linear(
        StackedMatrices(take, [f"{prefix}.{recurrence.output}.weight"], [(hidden, recurrence.num_values)]),
        None if output_bias is None else output_bias * config.residual_multiplier,
    )
    conv_bias = take(f"{block}.conv1d.bias", (channels,)) if recurrence.has_conv_bias else None
    return (
        inputs,
        output,
        RecurrentWeights(
            conv=take(f"{block}.conv1d.weight", (channels, 1, width))[:, 0].float().T.contiguous(),
            conv_bias=None if conv_bias is None else conv_bias.float(),
            decay=-take(f"{block}.A_log", (heads,)).float().exp(),
            step_bias=take(f"{block}.dt_bias", (heads,)).float(),
            skip=take(f"{block}.D", (heads,)).float() if is_mamba else None,
            norm=take(f"{block}.norm.weight", (recurrence.num_values if is_mamba else recurrence.value_dim,)).float(),
        ),
    )


def _experts(
    take: Take, config: ModelConfig, experts: Experts, prefix: str, make_grouped: MakeGrouped
) -> ExpertWeights:
    hidden, inner = config.hidden_size, config.intermediate_size

    def grouped(projections: Sequence[str], height: int, width: int) -> GroupedProduct:
        each = [
            f"{prefix}.mlp.experts.{expert}.{projection}"
            for expert in range(experts.number)
            for projection in projections
        ]
        bias = torch.cat([take(f"{name}.bias", (height,)) for name in each]) if experts.has_biases else None
        matrices = StackedMatrices(take, [f"{name}.weight" for name in each], [(height, width)] * len(each))
        return make_grouped(matrices, bias, experts.number)

    router = f"{prefix}.mlp.router"
    bias = take(f"{router}.bias", (experts.number,)) if experts.has_biases else None
    return ExpertWeights(
        # As it is in every format: a rounded router would choose other experts.
        router=Linear(take(f"{router}.weight", (experts.number, hidden)), bias),
        gate_up=grouped(("gate_proj", "up_proj"), inner, hidden),
        down=grouped(("down_proj",), hidden, inner),
    )


def _norm_weight(take: Take, name: str, size: int, config: ModelConfig) -> Tensor:
    """Return the weight [size] of a norm, in fp32 where an offset would be rounded away."""
    weight = take(f"{name}.weight", (size,))
    return weight if config.norm_offset == 0.0 else weight.float() + config.norm_offset
