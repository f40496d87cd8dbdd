"""What a base model is and how an engine is set up. Read by gateways too, so nothing here imports torch."""

from __future__ import annotations

import hashlib
import math
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

Projection = Literal["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
PROJECTIONS: tuple[Projection, ...] = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")

FAMILIES = ("llama", "mistral", "qwen2", "qwen3")


class UnsupportedModel(ValueError):
    """The model folder asks for something this engine does not compute; the message names the config key."""


class RopeParameters(msgspec.Struct, frozen=True):
    """Rotary embedding of one model (Su et al., 2021).

    kind: default; linear (positions divided by factor); llama3 (low frequencies divided, Llama 3.1); yarn (Peng et al.,
    2023). attention_factor: what cos and sin are multiplied by.
    """

    theta: float
    kind: str = "default"
    factor: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_max_position: int = 0
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    truncate: bool = True
    attention_factor: float = 1.0


class ModelConfig(msgspec.Struct, frozen=True):
    """A decoder of the Llama family, as its `config.json` describes it.

    qkv_bias: Qwen2, or Llama with attention_bias. o_bias: Llama with attention_bias. qk_norm: Qwen3.
    sliding_window: tokens each position sees, itself included; None sees all.
    embedding_sizes: to how many numbers an embedding may be shortened, hidden_size among them; () only hidden_size.
    """

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
    o_bias: bool = False
    qk_norm: bool = False
    sliding_window: int | None = None
    eos_token_ids: tuple[int, ...] = ()
    embedding_sizes: tuple[int, ...] = ()

    def projection_shape(self, projection: Projection) -> tuple[int, int]:
        """(in_features, out_features) of one linear of a layer."""
        q, kv = self.num_heads * self.head_dim, self.num_kv_heads * self.head_dim
        return {
            "q_proj": (self.hidden_size, q),
            "k_proj": (self.hidden_size, kv),
            "v_proj": (self.hidden_size, kv),
            "o_proj": (q, self.hidden_size),
            "gate_proj": (self.hidden_size, self.intermediate_size),
            "up_proj": (self.hidden_size, self.intermediate_size),
            "down_proj": (self.intermediate_size, self.hidden_size),
        }[projection]

    def adapter_targets(self) -> dict[str, tuple[int, int]]:
        """What an adapter may target: {projection: (in_features, out_features)}, the same in every layer."""
        return {projection: self.projection_shape(projection) for projection in PROJECTIONS}


Count = Annotated[int, Meta(ge=0, le=2**31 - 1)]
Positive = Annotated[int, Meta(ge=1, le=2**31 - 1)]
Bytes = Annotated[int, Meta(ge=1, le=2**50)]


class EngineConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Every setting of one engine process: the only list of them.

    The gateway reads the fields from variables of the environment, and `python -m engine` has a flag for each or takes
    all as one JSON object. Each description is the documentation of the variable and of the flag.
    """

    model_dir: Annotated[str, Meta(description="Folder of the base model, with `config.json` and `*.safetensors`.")]
    endpoint: Annotated[str, Meta(description="ZeroMQ address of the engine, e.g. `ipc:///run/lorikeet/engine.sock`.")]
    open_endpoint: Annotated[
        bool,
        Meta(
            description="Permission for an endpoint that every user of this machine can reach, and use without a key: "
            "`tcp://127.0.0.1:PORT` or an abstract socket, `ipc://@NAME`."
        ),
    ] = False
    device: Annotated[
        Literal["auto", "cpu", "cuda"],
        Meta(description="Device on which the engine computes: `auto`, `cpu` or `cuda`."),
    ] = "auto"
    dtype: Annotated[
        Literal["auto", "float32", "bfloat16", "float16"],
        Meta(description="Number format of the weights: `auto`, `float32`, `bfloat16` or `float16`."),
    ] = "auto"
    quantization: Annotated[
        Literal["auto", "none", "int8"],
        Meta(
            description="Quantization of the base model's matrices on a CPU: `none`, `int8` (8-bit integers, made of "
            "the weights at start; adapters stay as they are) or `auto`, which is `none`."
        ),
    ] = "auto"
    kv_cache_bytes: Annotated[
        Bytes | None, Meta(description="Memory for the KV cache, e.g. `512MiB` (unset: chosen at start).")
    ] = None
    max_model_len: Annotated[Count, Meta(description="Longest sequence in tokens (0: the model's own).")] = 0
    max_num_seqs: Annotated[Positive, Meta(description="Largest number of sequences in one batch.")] = 64
    max_batched_tokens: Annotated[
        Count, Meta(description="Largest number of tokens computed in one step (0: 512 on a CPU, 2048 on a GPU).")
    ] = 0
    max_waiting: Annotated[
        Positive,
        Meta(description="Requests that may wait in the engine's queue; one tenant gets at most half of the queue."),
    ] = 512
    num_threads: Annotated[
        Count,
        Meta(
            description="CPU threads of the engine (0: as many as `OMP_NUM_THREADS` says, or as there are processors, "
            "and fewer while other work keeps the processors busy)."
        ),
    ] = 0
    max_adapters: Annotated[Positive, Meta(description="Largest number of adapters on the device at once.")] = 32
    max_adapter_rank: Annotated[
        int,
        Meta(
            ge=1,
            le=256,
            description="Largest rank of an adapter; adapters of a larger rank are refused. GPUs are faster with a "
            "smaller value.",
        ),
    ] = 256
    adapter_device_bytes: Annotated[
        Bytes | None, Meta(description="Device memory for adapters, e.g. `2GiB` (unset: chosen at start).")
    ] = None
    adapter_host_bytes: Annotated[
        Bytes, Meta(description="Host memory for adapters that are kept ready to return to the device, e.g. `1GiB`.")
    ] = 1 << 30
    adapter_store: Annotated[
        str, Meta(description="Place where adapters are stored: a folder or `s3://bucket/prefix`.")
    ]
    adapter_cache_dir: Annotated[str, Meta(description="Folder for local copies of adapters from a bucket.")] = ""
    # The copies of 16 adapters of the largest size that may be uploaded by default, or of a hundred of rank 16 for a
    # model of 8B parameters. A bound in bytes, so that it means the same beside any other use of the disk.
    adapter_cache_bytes: Annotated[
        Bytes, Meta(description="Disk space for each machine's local copies of adapters from a bucket, e.g. `8GiB`.")
    ] = 8 << 30
    gpu_memory_fraction: Annotated[
        float,
        Meta(gt=0, le=1, description="Fraction of a GPU's memory for weights, computation, the KV cache and adapters."),
    ] = 0.9
    num_draft_tokens: Annotated[
        int,
        Meta(
            ge=0,
            le=32,
            description="Tokens that speculative decoding proposes per step (0: off). With speculation, a GPU waits "
            "for the host between steps.",
        ),
    ] = 0
    # Tokens in one block of the KV cache. Without a description, as it is no setting: tests alone vary it.
    block_size: int = 16
    # Seconds without any connection after which the engine ends by itself (0: never). An agent says it for its engines.
    unattended_s: float = 0.0


def load_model_config(model_dir: str | Path) -> ModelConfig:
    """Read `config.json` (and `generation_config.json` for its eos ids) of a model folder.

    Raises UnsupportedModel, naming the key, for anything the engine would compute wrongly.
    """
    folder = Path(model_dir)
    raw = _read_json(folder / "config.json")
    family = raw.get("model_type")
    if family not in FAMILIES:
        raise UnsupportedModel(f"config.json: model_type is {family!r}; supported: {', '.join(FAMILIES)}")
    if raw.get("hidden_act", "silu") != "silu":
        raise UnsupportedModel(f"config.json: hidden_act is {raw['hidden_act']!r}; supported: 'silu'")
    if raw.get("mlp_bias", False):
        raise UnsupportedModel("config.json: mlp_bias is not supported")
    try:
        return _model_config(family, raw, folder)
    except KeyError as missing:
        raise UnsupportedModel(f"config.json: {missing.args[0]} is missing") from None


def _model_config(family: str, raw: dict[str, Any], folder: Path) -> ModelConfig:
    num_heads = raw["num_attention_heads"]
    return ModelConfig(
        family=family,
        vocab_size=raw["vocab_size"],
        hidden_size=raw["hidden_size"],
        intermediate_size=raw["intermediate_size"],
        num_layers=raw["num_hidden_layers"],
        num_heads=num_heads,
        num_kv_heads=raw.get("num_key_value_heads") or num_heads,
        head_dim=raw.get("head_dim") or raw["hidden_size"] // num_heads,
        rms_norm_eps=raw.get("rms_norm_eps", 1e-6),
        rope=_rope(raw),
        max_position=raw["max_position_embeddings"],
        tie_word_embeddings=bool(raw.get("tie_word_embeddings", False)),
        qkv_bias=family == "qwen2" or bool(raw.get("attention_bias", False)),
        o_bias=family in ("llama", "qwen3") and bool(raw.get("attention_bias", False)),
        qk_norm=family == "qwen3",
        sliding_window=_sliding_window(family, raw),
        eos_token_ids=_eos_token_ids(raw, folder),
        embedding_sizes=_embedding_sizes(raw),
    )


def _embedding_sizes(raw: dict[str, Any]) -> tuple[int, ...]:
    """Return the sizes that the model was trained to have its embeddings shortened to (Matryoshka Representation
    Learning, Kusupati et al., 2022), by the two keys that vLLM reads: a list of sizes, or that any size will do.

    Raises UnsupportedModel: for sizes that an embedding of this model cannot have.
    """
    size, named = raw["hidden_size"], raw.get("matryoshka_dimensions")
    if not named:
        return tuple(range(1, size + 1)) if raw.get("is_matryoshka") is True else ()
    if not isinstance(named, list) or not all(type(each) is int and 0 < each <= size for each in named):
        raise UnsupportedModel(f"config.json: matryoshka_dimensions must be a list of integers in 1..{size}")
    return tuple(sorted({*named, size}))


def _rope(raw: dict[str, Any]) -> RopeParameters:
    """Both spellings: `rope_parameters` (transformers 5) and `rope_theta` with `rope_scaling` (transformers 4)."""
    scaling = raw.get("rope_parameters") or raw.get("rope_scaling") or {}
    kind = scaling.get("rope_type") or scaling.get("type") or "default"
    if kind not in ("default", "linear", "llama3", "yarn"):
        raise UnsupportedModel(f"config.json: rope type is {kind!r}; supported: default, linear, llama3, yarn")
    if scaling.get("partial_rotary_factor", raw.get("partial_rotary_factor", 1.0)) != 1.0:
        raise UnsupportedModel("config.json: partial_rotary_factor other than 1.0 is not supported")
    original = scaling.get("original_max_position_embeddings") or raw["max_position_embeddings"]
    factor = float(scaling.get("factor") or raw["max_position_embeddings"] / original)
    return RopeParameters(
        theta=float(scaling.get("rope_theta") or raw.get("rope_theta") or 10000.0),
        kind=kind,
        factor=factor,
        low_freq_factor=float(scaling.get("low_freq_factor", 1.0)),
        high_freq_factor=float(scaling.get("high_freq_factor", 4.0)),
        original_max_position=int(original),
        beta_fast=float(scaling.get("beta_fast") or 32.0),
        beta_slow=float(scaling.get("beta_slow") or 1.0),
        truncate=bool(scaling.get("truncate", True)),
        attention_factor=_yarn_attention_factor(scaling, factor) if kind == "yarn" else 1.0,
    )


def _yarn_attention_factor(scaling: dict[str, Any], factor: float) -> float:
    """Given, or by YaRN's temperature 0.1 ln(factor) + 1, which DeepSeek's two mscale keys generalise."""
    if scaling.get("attention_factor") is not None:
        return float(scaling["attention_factor"])

    def temperature(mscale: float) -> float:
        return 0.1 * mscale * math.log(factor) + 1.0 if factor > 1 else 1.0

    if scaling.get("mscale") and scaling.get("mscale_all_dim"):
        return temperature(scaling["mscale"]) / temperature(scaling["mscale_all_dim"])
    return temperature(1.0)


def _sliding_window(family: str, raw: dict[str, Any]) -> int | None:
    """Tokens each position sees, the same in every layer. Raises UnsupportedModel where layers differ."""
    window = raw.get("sliding_window")
    if window is None or not raw.get("use_sliding_window", family == "mistral"):
        return None
    num_layers = raw["num_hidden_layers"]
    default = ["sliding_attention"] * num_layers
    if family in ("qwen2", "qwen3"):  # the first max_window_layers layers see everything
        full = min(raw.get("max_window_layers", num_layers), num_layers)
        default = ["full_attention"] * full + ["sliding_attention"] * (num_layers - full)
    kinds = set(raw.get("layer_types") or default)
    if len(kinds) > 1:
        raise UnsupportedModel("config.json: layer_types (or max_window_layers) mixes full and sliding attention")
    return int(window) if kinds == {"sliding_attention"} else None


def _eos_token_ids(raw: dict[str, Any], folder: Path) -> tuple[int, ...]:
    generation = folder / "generation_config.json"
    eos = _read_json(generation).get("eos_token_id") if generation.exists() else None
    eos = raw.get("eos_token_id") if eos is None else eos
    if eos is None:
        return ()
    return tuple(eos) if isinstance(eos, list) else (int(eos),)


def _read_json(path: Path) -> dict[str, Any]:
    try:
        raw = msgspec.json.decode(path.read_bytes())
    except FileNotFoundError:
        raise UnsupportedModel(f"{path} does not exist") from None
    except msgspec.DecodeError as error:
        raise UnsupportedModel(f"{path} is not JSON: {error}") from None
    if not isinstance(raw, dict):
        raise UnsupportedModel(f"{path} is not a JSON object")
    return raw


def model_digest(model_dir: str | Path) -> str:
    """Identity of a base model: SHA-256 over its config and over the name, size and header of each weight file.

    Reads kilobytes, not gigabytes: it tells models apart in a hello, it does not prove the weights' integrity.
    """
    folder = Path(model_dir)
    digest = hashlib.sha256((folder / "config.json").read_bytes())
    for path in sorted(folder.glob("*.safetensors")):
        digest.update(f"{path.name}:{path.stat().st_size}:".encode())
        with path.open("rb") as file:
            digest.update(file.read(1 << 16))
    return digest.hexdigest()
