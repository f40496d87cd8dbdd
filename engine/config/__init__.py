"""The identity of a base model and the settings of an engine. Read by gateways too, so nothing here imports torch."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from engine.config.model import PROJECTIONS, ModelConfig, Projection, RopeParameters, UnsupportedModel
from engine.config.model_folder import DecoderChoice, load_model_config, model_digest

__all__ = [
    "PROJECTIONS",
    "EngineConfig",
    "ModelConfig",
    "Projection",
    "RopeParameters",
    "UnsupportedModel",
    "load_model_config",
    "model_digest",
]

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
        Literal["auto", "none", "int8", "int4", "fp8", "w8a8", "gguf"],
        Meta(
            description="Numbers in which the base model's matrices are multiplied; adapters stay as they are. `none`: "
            "the numbers of the weights; `int8` or `int4`: 8-bit or 4-bit integers, on a CPU made of the weights at "
            "start; `gguf`: the blocks of the model's GGUF file, on a CPU; `fp8` or `int4` on a GPU: the numbers "
            "of a quantized checkpoint, `w8a8` with inputs rounded to FP8 as well; `auto`: the numbers of a "
            "quantized checkpoint where the kernels can multiply them; else, on a CPU, `int8` where weights would"
            " be float32 and the first start with a model finds it near enough to itself in float32; else `none`."
        ),
    ] = "auto"
    native_path: Annotated[
        Literal["auto", "plain", "avx2", "avx_vnni", "avx512_vnni"],
        Meta(
            description="Instructions of the native kernels on a CPU: `auto` takes the fastest that the processor has; "
            "another value is for comparisons."
        ),
    ] = "auto"
    decoder: Annotated[
        DecoderChoice,
        Meta(
            description="Code that computes the model: `own` is the engine's, for the families of engine/README.md; "
            "`transformers` is the model class of the installed transformers, which is slower; `auto` takes `own` "
            "for each family that it knows."
        ),
    ] = "auto"
    kv_dtype: Annotated[
        Literal["auto", "fp8"],
        Meta(
            description="Number format of the KV cache: `auto` (that of the weights, on a CPU with 8-bit or 4-bit "
            "matrices `bfloat16`) or `fp8` (on a GPU, 8-bit numbers with a scale for each key and value: room for "
            "nearly twice as many tokens as in 16 bits)."
        ),
    ] = "auto"
    kv_cache_bytes: Annotated[
        Bytes | None,
        Meta(
            description="Memory for the KV cache, e.g. `512MiB` (unset: what a GPU has left; on a CPU room for 128 "
            "tokens of each sequence in a batch and for one longest sequence, at most 1 GiB and a quarter of the free "
            "memory)."
        ),
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
    batch_lengthening: Annotated[
        float,
        Meta(
            ge=0,
            le=10,
            description="Largest part by which requests of batches may lengthen a step in which interactive "
            "requests are computed.",
        ),
    ] = 0.15
    batch_step_ms: Annotated[
        Count,
        Meta(
            description="Longest predicted step, in milliseconds, that computes requests of batches alone. An "
            "interactive request that arrives waits for at most one such step; where the native kernels compute, the "
            "step pauses for it (0: 30 on a GPU; on a CPU 120 where steps pause and 50 elsewhere, or what its best "
            "throughput takes, up to two steps of one sequence)."
        ),
    ] = 0
    batch_share: Annotated[
        float,
        Meta(
            ge=0,
            le=0.5,
            description="Part of the engine's service that requests of batches get while there are any, however "
            "many interactive requests there are.",
        ),
    ] = 0.02
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
    # The fields from here on are no settings, so they have no description.
    block_size: int = 16
    """Tokens in one block of the KV cache; only tests vary the number."""
    link_dir: str = ""
    """The folder of the host's keys (`engine.curve`), with which an endpoint on TCP is guarded; set by an agent."""
    unattended_s: float = 0.0
    """Seconds without any connection after which the engine ends by itself; 0: never. Set by an agent."""
