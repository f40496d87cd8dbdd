"""The numbers of a base model's `config.json` on which a forward pass depends. Knows no file and no device."""

from __future__ import annotations

import math
from typing import Literal, NamedTuple

import msgspec

from engine.config.recurrence import Recurrence

Projection = Literal["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
PROJECTIONS: tuple[Projection, ...] = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
ATTENTION: tuple[Projection, ...] = PROJECTIONS[:4]

FUSED: dict[str, tuple[Projection, ...]] = {
    "self_attn.qkv_proj": ("q_proj", "k_proj", "v_proj"),
    "mlp.gate_up_proj": ("gate_proj", "up_proj"),
    "shared_mlp.input_linear": ("gate_proj", "up_proj"),
}
"""Modules that are one matrix in some checkpoints, and the projections that are their parts, one below the other."""


class UnsupportedModel(ValueError):
    """The error for a model folder that asks for something this engine does not compute; the message names it."""


class RopeParameters(msgspec.Struct, frozen=True):
    """The rotary embedding of one model (Su et al., 2021)."""

    theta: float
    """The base of the frequencies."""
    kind: str = "default"
    """default; linear (positions divided by factor); llama3 (low frequencies divided, Llama 3.1); yarn (Peng et al.,
    2023); longrope (Ding et al., 2024)."""
    factor: float = 1.0
    """The factor by which the context is longer than in training."""
    low_freq_factor: float = 1.0
    """Llama 3.1: wavelengths above original_max_position divided by this number are stretched in full."""
    high_freq_factor: float = 4.0
    """Llama 3.1: wavelengths below original_max_position divided by this number stay as they are."""
    original_max_position: int = 0
    """The context length in training, in tokens; 0: not told."""
    beta_fast: float = 32.0
    """YaRN: dimensions with more rotations than this over the training context stay as they are."""
    beta_slow: float = 1.0
    """YaRN: dimensions with fewer rotations than this over the training context are stretched in full."""
    truncate: bool = True
    """YaRN: True rounds the bounds of the dimensions in between to whole ones."""
    attention_factor: float = 1.0
    """The factor of cos and sin."""
    rotary_dim: int = 0
    """The number of each head's dimensions that are rotated; 0: all."""
    short_factors: tuple[float, ...] = ()
    """LongRoPE's divisors of the frequencies of sequences up to original_max_position."""
    long_factors: tuple[float, ...] = ()
    """LongRoPE's divisors of the frequencies of longer sequences, at all their positions."""


Pooling = Literal["cls", "last", "mean"]
"""The final hidden states that represent a text: the first token's, the last token's, or the mean of all tokens'."""


class Task(msgspec.Struct, frozen=True):
    """The purpose of a base model, and how its hidden states become its answers."""

    kind: Literal["text", "embed", "rerank"] = "text"
    """text: completions, and embeddings that the model was not trained for; embed: embeddings alone; rerank: scores of
    how relevant a document is for a query, alone."""
    pooling: Pooling = "mean"
    is_normalized: bool = True
    """True where embeddings have unit length."""
    prompts: dict[str, str] = {}
    """The texts that go before a text to embed, by the names that the model's makers gave them."""
    default_prompt: str = ""
    """The name of the prompt that goes before texts where none is named; "" for none."""
    scored_by: Literal["", "classifier", "tokens"] = ""
    """The way in which a reranker makes a score: by a classifier of its own, or by the logits of two tokens."""
    tokens: tuple[int, int | None] = (0, None)
    """The token whose logit counts for a document, and the one whose logit counts against it, if there is one."""
    begins_answer: bool = False
    """True where a chat template that shows a query and a document is to show the beginning of an answer, too."""
    max_length: int | None = None
    """The most tokens of a text, where the model's makers name a number below its positions."""


class NormNames(msgspec.Struct, frozen=True):
    """The names of a layer's norms in a checkpoint; none where a layer has no such norm."""

    before_attention: str = "input_layernorm"
    after_attention: str = ""
    """The norm of attention's output, before that is added to the residual stream."""
    before_feed_forward: str = "post_attention_layernorm"
    after_feed_forward: str = ""
    """The norm of the feed-forward part's output, before that is added."""


class Scheme(msgspec.Struct, frozen=True):
    """A quantization format: the numbers of a matrix [outputs, inputs] in few bits, each to be multiplied by a scale.

    A scale may be shared by several outputs and inputs.
    """

    kind: Literal["float8", "int"]
    """float8: numbers of 8 bits in e4m3; int: integers, from which a zero point is subtracted first."""
    bits: int
    """The bits of one number."""
    rows: int
    """The outputs that share a scale; 0: all."""
    inputs: int
    """The inputs that share a scale; 0: all."""
    symmetric: bool = True
    """True where the zero point of integers is the middle of their range."""
    ordered: bool = False
    """True where a tensor says which group each input is in (act-order)."""
    rounds_inputs: bool = False
    """True where the checkpoint was made for inputs that are rounded to FP8, too."""

    def __str__(self) -> str:
        if self.kind == "float8":
            of = {(0, 0): "a scale a matrix", (1, 0): "a scale a row"}
            return f"FP8, {of.get((self.rows, self.inputs), f'blocks of {self.rows}x{self.inputs}')}"
        groups = f"groups of {self.inputs}" if self.inputs else "a scale a row" if self.rows else "a scale a matrix"
        return f"{self.bits} bits, {groups}{', act-order' if self.ordered else ''}"


class Quantized(msgspec.Struct, frozen=True):
    """The way in which files hold a model's matrices in few bits."""

    method: Literal["fp8", "awq", "gptq", "compressed-tensors", "modelopt"]
    schemes: tuple[Scheme, ...]
    """The formats of the matrices. A matrix that files hold as it is has none."""
    layout: Literal["", "gemm", "gemv", "gptq", "gptq_v2"] = ""
    """The order of the integers of AWQ and GPTQ."""

    @property
    def keeps_integers(self) -> bool:
        """Tell whether all matrices are 4-bit integers in groups that the native kernels have."""
        return all(
            scheme.kind == "int" and scheme.bits == 4 and not scheme.ordered and scheme.inputs % 32 == 0
            for scheme in self.schemes
        )

    @property
    def on_gpu(self) -> Literal["", "fp8", "int4"]:
        """The numbers that a GPU's kernels multiply by; none where matrices become those of the model's format."""
        if any(scheme.kind == "float8" for scheme in self.schemes):
            return "fp8"
        return "int4" if any(scheme.bits == 4 for scheme in self.schemes) else ""

    @property
    def rounds_inputs(self) -> bool:
        """Tell whether the checkpoint was made for inputs that are rounded to FP8."""
        return all(scheme.rounds_inputs for scheme in self.schemes)

    def __str__(self) -> str:
        names = {"fp8": "", "awq": "AWQ, ", "gptq": "GPTQ, ", "modelopt": "ModelOpt, "}
        return names.get(self.method, "") + "; ".join(dict.fromkeys(map(str, self.schemes)))


class ExpertNames(NamedTuple):
    """The names of a layer's experts in a checkpoint."""

    router: str = "mlp.gate"
    block: str = "mlp.experts"
    """The module that holds the experts, by their numbers."""
    gate: str = "gate_proj"
    up: str = "up_proj"
    down: str = "down_proj"
    gate_up: str = "mlp.experts.gate_up_proj"
    """The tensor of all experts' gates and ups, in checkpoints that have them in one."""
    downs: str = "mlp.experts.down_proj"
    """The tensor of all experts' downs, in checkpoints that have them in one."""


class Experts(msgspec.Struct, frozen=True):
    """The experts of each layer, of which a router chooses some for each token."""

    number: int
    """The number of experts of a layer."""
    chosen: int
    """The number of experts chosen for each token."""
    normalized: bool
    """True where the weights of the chosen experts sum to 1; False where those of all experts do.

    A softmax of all logits whose chosen ones are then divided by their sum is a softmax of the chosen logits.
    """
    names: ExpertNames = ExpertNames()
    order: Literal["halves", "interleaved"] = "halves"
    """The order of outputs where one tensor has gate and up: first all of the gate, or gate and up by turns, and then
    matrices lie as [in, out] (gpt-oss)."""
    has_biases: bool = False
    """True where the router and all projections of the experts have biases: gpt-oss."""
    clamp: tuple[float, float] | None = None
    """The slope and the bound of gpt-oss's gate, min(g, bound) sigmoid(slope g) (clip(u, bound) + 1); None: another."""


class ExpertModule(NamedTuple):
    """A module of experts that an adapter may target."""

    projections: tuple[str, ...]
    """The linears of an expert whose outputs the module has."""
    expert: int | None
    """The number of the expert; None where the module has a matrix of each."""


class ModelConfig(msgspec.Struct, frozen=True):
    """A decoder of the Llama family or near to it, as its `config.json` describes it."""

    family: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    rms_norm_eps: float
    rope: RopeParameters
    max_position: int
    tie_word_embeddings: bool
    qkv_bias: bool = False
    """True where queries, keys and values have biases: Qwen2, and others with attention_bias."""
    o_bias: bool = False
    """True where the output of attention has a bias: Llama, Qwen3, SmolLM3 and Granite with attention_bias."""
    qk_norm: bool = False
    """True where queries and keys are normed by head: Qwen3 and Gemma 3."""
    whole_qk_norm: bool = False
    """True where all heads of queries are normed together, and all of keys: OLMo 2 and 3."""
    fused: tuple[str, ...] = ()
    """The modules of `FUSED` that checkpoints and adapters have in place of their parts: Phi-3 and GLM-4."""
    interleaved: bool = False
    """True where neighbouring dimensions are rotated together in the checkpoint: GLM-4."""
    experts: Experts | None = None
    """The experts of each layer, whose inner size is intermediate_size then; None: one feed-forward part for all."""
    shared_size: int = 0
    """The inner size of a feed-forward part that all tokens go through beside their experts; 0: there is none."""
    shared_gate: str = ""
    """The module whose single output, through a sigmoid, is the factor of the shared expert; "" if it has no factor."""
    recurrence: Recurrence | None = None
    """The layers that keep a state in place of keys and values; None where all layers attend."""
    gated_attention: bool = False
    """True where queries come with a gate for each dimension of attention's output: Qwen3.5. In a checkpoint each head
    has its queries, then its gates; the engine has the queries of all heads first."""
    renamed: tuple[tuple[str, str], ...] = ()
    """Projections whose modules have other names than Llama's, with those names."""
    unused: tuple[str, ...] = ()
    """The beginnings of names of tensors that a checkpoint may have, and that completions are computed without."""
    has_sinks: bool = False
    """True where each head's softmax has one more score whose weight is dropped: gpt-oss (Xiao et al., 2023)."""
    activation: Literal["silu", "gelu_tanh"] = "silu"
    """The function of the gate: Gemma has gelu by its approximation with tanh."""
    norm_offset: float = 0.0
    """The number that is added to the weight of each norm: 1 for Gemma."""
    norms: NormNames = NormNames()
    window_rope: RopeParameters | None = None
    """The rotation of layers with a window, where it is another one: Gemma 3."""
    windows: tuple[int | None, ...] = ()
    """For each layer the number of tokens that a position sees, itself included; None sees all. Empty: all see all."""
    unrotated_layers: tuple[int, ...] = ()
    """Layers whose queries and keys are not rotated (SmolLM3; Yang et al., 2025, arXiv 2501.18795)."""
    embedding_multiplier: float = 1.0
    """The factor of the embedding of each token: Granite, and Gemma."""
    attention_multiplier: float | None = None
    """The factor of attention's scores, for Granite and Gemma; None: one by the root of head_dim."""
    residual_multiplier: float = 1.0
    """The factor of the sums that attention and the feed-forward part add to the residual stream: Granite."""
    logits_divisor: float = 1.0
    """The divisor of logits: Granite."""
    attention_softcap: float = 0.0
    """The bound c of attention's scores s, which become c tanh(s / c): Gemma 2; 0: none."""
    logits_softcap: float = 0.0
    """The bound to which tanh squeezes logits, as `attention_softcap` does for scores: Gemma 2 has one; 0: none."""
    query_growth: float = 0.0
    """The factor of the logarithm by which queries grow at each further original_max_position: Ministral 3."""
    eos_token_ids: tuple[int, ...] = ()
    embedding_sizes: tuple[int, ...] = ()
    """The sizes to which an embedding may be shortened, hidden_size among them. Empty: only hidden_size."""
    quantized: Quantized | None = None
    """The way in which files hold matrices in few bits; None: as they are."""
    decoder: Literal["own", "transformers"] = "own"
    """The code that computes the model; for `transformers`, the fields that describe the computation are not read."""
    is_encoder: bool = False
    """True where every token sees the ones after it, too: a text is computed at once, and nothing is cached."""
    task: Task = Task()
    modules: tuple[tuple[str, int, int], ...] = ()
    """The modules that an adapter may target in a model of transformers: short names, inputs, outputs."""
    groups: tuple[tuple[str, ...], ...] = ()
    """The modules of a loaded model of transformers by groups that share an input: the names of each group."""

    @property
    def length_switch(self) -> int:
        """The longest sequence that has LongRoPE's short factors; 0 where no length changes the rotation."""
        return self.rope.original_max_position if self.rope.kind == "longrope" else 0

    @property
    def query_multiplier(self) -> float:
        """The factor by which queries are multiplied, so that scores over sqrt(head_dim) have the model's own scale."""
        return 1.0 if self.attention_multiplier is None else self.attention_multiplier * math.sqrt(self.head_dim)

    def rope_of(self, layer: int) -> RopeParameters:
        """Return the rotation of a layer's queries and keys."""
        return self.rope if self.window_rope is None or self.window(layer) is None else self.window_rope

    def window(self, layer: int) -> int | None:
        """Return the number of tokens that a position of a layer sees, itself included; None for all."""
        return self.windows[layer] if self.windows else None

    def projection_shape(self, projection: Projection) -> tuple[int, int]:
        """Return (in_features, out_features) of one linear of a layer."""
        q, kv = self.num_heads * self.head_dim, self.num_kv_heads * self.head_dim
        inner = self.intermediate_size if self.experts is None else self.shared_size
        return {
            "q_proj": (self.hidden_size, 2 * q if self.gated_attention else q),
            "k_proj": (self.hidden_size, kv),
            "v_proj": (self.hidden_size, kv),
            "o_proj": (q, self.hidden_size),
            "gate_proj": (self.hidden_size, inner),
            "up_proj": (self.hidden_size, inner),
            "down_proj": (inner, self.hidden_size),
        }[projection]

    def projection_shapes(self) -> dict[str, tuple[int, int]]:
        """Return (in_features, out_features) of each linear of a layer, apart where a checkpoint has them fused.

        The linears of experts are left out.
        """
        if self.decoder == "transformers":
            return {name: (num_in, num_out) for name, num_in, num_out in self.modules}
        names = PROJECTIONS if self.experts is None or self.shared_size else ATTENTION
        shapes: dict[str, tuple[int, int]] = {projection: self.projection_shape(projection) for projection in names}
        if self.shared_gate:
            shapes[self.shared_gate] = (self.hidden_size, 1)
        if self.recurrence is not None:
            shapes |= {name: (self.hidden_size, outputs) for name, outputs in self.recurrence.inputs.items()}
            shapes[self.recurrence.output] = (self.recurrence.num_values, self.hidden_size)
        return shapes

    @property
    def cached_layers(self) -> list[int]:
        """The layers that attend, whose keys and values are cached."""
        recurrent = () if self.recurrence is None else self.recurrence.layers
        return [layer for layer in range(self.num_layers) if layer not in recurrent]

    def layers_of_targets(self) -> dict[str, tuple[int, ...]]:
        """Return the layers that have a module which adapters may target, for modules that not all layers have."""
        if self.recurrence is None:
            return {}
        attending = tuple(self.cached_layers)
        found = {self._module_of(name): attending for name in ATTENTION}
        return found | dict.fromkeys([*self.recurrence.inputs, self.recurrence.output], self.recurrence.layers)

    def expert_shapes(self) -> dict[str, tuple[int, int]]:
        """Return (in_features, out_features) of each linear of an expert; {} for a model without any."""
        if self.experts is None:
            return {}
        hidden, inner = self.hidden_size, self.intermediate_size
        shapes = ((hidden, inner), (hidden, inner), (inner, hidden))
        return {f"experts.{name}": shape for name, shape in zip(PROJECTIONS[4:], shapes, strict=True)}

    def expert_modules(self) -> dict[str, ExpertModule]:
        """Return the modules of experts that an adapter may target, by short names (`adapters.patterns`).

        Each expert has modules in transformers 4; a parameter has a matrix of each expert in transformers 5.
        """
        experts = self.experts
        if experts is None:
            return {}
        names, projections = experts.names, tuple(self.expert_shapes())
        alone = {
            f"{names.block}.{expert}.{own}": ExpertModule((projection,), expert)
            for expert in range(experts.number)
            for own, projection in zip((names.gate, names.up, names.down), projections, strict=True)
        }
        for block in {"mlp.experts", names.block}:
            alone[f"{block}[{experts.number}].gate_up_proj"] = ExpertModule(projections[:2], None)
            alone[f"{block}[{experts.number}].down_proj"] = ExpertModule(projections[2:], None)
        return alone

    def parts_of(self, module: str) -> tuple[Projection, ...]:
        """Return the projections of a module that an adapter may target, in the order of its outputs."""
        usual = {own: projection for projection, own in self.renamed}
        return FUSED[module] if module in self.fused else (usual.get(module, module),)  # type: ignore[return-value]

    def _module_of(self, projection: str) -> str:
        return dict(self.renamed).get(projection, projection)

    def adapter_targets(self) -> dict[str, tuple[int, int]]:
        """Return the modules that an adapter may target in each layer: {module: (in_features, out_features)}."""
        if self.decoder == "transformers":
            return self.projection_shapes()
        fused: dict[str, str] = {FUSED[name][0]: name for name in self.fused}
        parts = {part for name in self.fused for part in FUSED[name]}
        shapes = self.projection_shapes()
        modules = [fused.get(name, self._module_of(name)) for name in shapes if name in fused or name not in parts]
        targets = {name: _fused_shape([shapes[part] for part in self.parts_of(name)]) for name in modules}
        of_experts = self.expert_shapes()
        for name, module in self.expert_modules().items():
            targets[name] = _fused_shape([of_experts[part] for part in module.projections])
        return targets

    def head_order(self) -> tuple[int, ...] | None:
        """Return the order in which the engine has the dimensions of heads of queries and keys; None: as checkpoints.

        The engine rotates dimension i together with i + head_dim / 2. Dimensions that are not rotated come last in each
        half, where their angle is zero. Scores do not change by the order, since queries and keys have the same.
        """
        size = self.head_dim
        rotated = self.rope.rotary_dim or size
        pairs = [(2 * i, 2 * i + 1) if self.interleaved else (i, i + rotated // 2) for i in range(rotated // 2)]
        rest = (size - rotated) // 2
        pairs += [(rotated + i, rotated + rest + i) for i in range(rest)]
        order = (*(first for first, _ in pairs), *(second for _, second in pairs))
        return None if order == tuple(range(size)) else order


def _fused_shape(parts: list[tuple[int, int]]) -> tuple[int, int]:
    """Return (in_features, out_features) of one linear in the place of several that share an input."""
    return parts[0][0], sum(outputs for _, outputs in parts)
