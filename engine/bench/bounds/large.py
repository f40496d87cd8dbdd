"""`python -m engine.bench.bounds.large --folder DIR`: whether a model of 7 billion weights serves in 8 GB of memory.

Makes the shape of Mistral 7B with random weights in DIR, once, and answers a request in a process that may have no more
memory of its own than the bound (RLIMIT_DATA, which counts what is mapped, whether it is used or not). The model is a
GGUF file in Q4_K (4.2 GB), or with `--format int4` safetensors in bfloat16 (14.5 GB), of which the first start makes
4-bit integers. These files are mapped as memory that could be written to, so their bytes are added to the bound. Prints
times and peaks as one line; ends with 1 where there was not enough memory.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import re
import resource
import sys
import time
from collections.abc import Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Literal

import msgspec
import numpy as np
import torch

from engine.bench.drive import BenchEngine, Source, run_closed
from engine.bench.workload import Workload
from engine.config import PROJECTIONS, EngineConfig, load_model_config
from engine.hardware import use_huge_pages

CONFIG = {
    "model_type": "mistral",
    "vocab_size": 32000,
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "max_position_embeddings": 32768,
    "rms_norm_eps": 1e-5,
    "rope_theta": 1e6,
    "tie_word_embeddings": False,
    "sliding_window": None,
}
SEED = 7
SPREAD = 0.02
"""The standard deviation of the random weights."""
BLOCK_BYTES, BLOCK = 144, 256


def shapes(folder: Path) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Yield the name and the shape of every tensor of the model."""
    config = load_model_config(folder)
    table = (config.vocab_size, config.hidden_size)
    yield from (("model.embed_tokens.weight", table), ("lm_head.weight", table))
    yield "model.norm.weight", (config.hidden_size,)
    for layer in range(config.num_layers):
        for norm in ("input_layernorm", "post_attention_layernorm"):
            yield f"model.layers.{layer}.{norm}.weight", (config.hidden_size,)
        for name in PROJECTIONS:
            width, height = config.projection_shape(name)
            block = "self_attn" if name in ("q_proj", "k_proj", "v_proj", "o_proj") else "mlp"
            yield f"model.layers.{layer}.{block}.{name}.weight", (height, width)


def make_gguf(folder: Path) -> None:
    """Write random weights as one GGUF file, whose matrices are in Q4_K."""
    from gguf import GGMLQuantizationType, GGUFWriter

    from engine.config.gguf_file import FILE_NAME, gguf_name

    rng = np.random.default_rng(SEED)
    partial = folder / f"{FILE_NAME}.partial"
    writer = GGUFWriter(partial, "llama")
    for name, shape in shapes(folder):
        if len(shape) == 1:
            writer.add_tensor_info(gguf_name(name), shape, np.dtype(np.float32), shape[0] * 4)
        else:
            size = shape[0] * shape[1] // BLOCK * BLOCK_BYTES
            packed = (shape[0], shape[1] // BLOCK * BLOCK_BYTES)
            writer.add_tensor_info(
                gguf_name(name), packed, np.dtype(np.uint8), size, raw_dtype=GGMLQuantizationType.Q4_K
            )
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    for _, shape in shapes(folder):
        writer.write_tensor_data(np.ones(shape, np.float32) if len(shape) == 1 else _random_blocks(rng, *shape))
    writer.close()
    partial.rename(folder / FILE_NAME)


def _random_blocks(rng: np.random.Generator, height: int, width: int) -> np.ndarray:
    """Return rows of Q4_K whose numbers have about the standard deviation SPREAD.

    Scales and minima of 6 bits are random.
    """
    blocks = rng.integers(0, 256, (height, width // BLOCK, BLOCK_BYTES), dtype=np.uint8)
    scale = np.float16(SPREAD / 31 / 7.5)
    blocks[..., 0:2] = np.array([scale]).view(np.uint8)
    blocks[..., 2:4] = np.array([np.float16(7.5 * float(scale))]).view(np.uint8)  # so that they are around 0
    return blocks.reshape(height, -1)


def make_safetensors(folder: Path) -> None:
    """Write random weights in bfloat16, a file for each layer."""
    from safetensors.torch import save_file

    generator = torch.Generator().manual_seed(SEED)
    files: dict[str, dict[str, tuple[int, ...]]] = {}
    for name, shape in shapes(folder):
        found = re.match(r"model\.layers\.(\d+)\.", name)
        files.setdefault(f"model-{int(found[1]):02}" if found else "model-rest", {})[name] = shape
    for file, tensors in files.items():
        made = {
            name: torch.ones(shape, dtype=torch.bfloat16)
            if len(shape) == 1
            else (torch.randn(shape, generator=generator) * SPREAD).bfloat16()
            for name, shape in tensors.items()
        }
        save_file(made, folder / f"{file}.safetensors")


def _answer(config: EngineConfig, most_bytes: int, connection: Connection) -> None:
    """Start an engine within a bound of memory, and answer one request.

    most_bytes: the bound. connection: gets the figures.
    """
    resource.setrlimit(resource.RLIMIT_DATA, (most_bytes, most_bytes))
    use_huge_pages()
    workload = Workload(load_model_config(config.model_dir).vocab_size)
    began_s = time.monotonic()
    with BenchEngine(config) as engine:
        started_s = time.monotonic() - began_s
        (trace,) = run_closed(engine, [Source(iter([workload.request(workload.prompt(65), 16)]), 1)])
    status = Path("/proc/self/status").read_text()
    kept = {key: int(value) << 10 for key, value in re.findall(r"^(VmHWM|RssAnon|VmData):\s+(\d+) kB", status, re.M)}
    connection.send(
        {
            "start_s": round(started_s, 1),
            "prompt_ms": round(1e3 * trace.ttft_s),
            "token_ms": round(1e3 * sum(trace.gaps_s) / len(trace.gaps_s), 1),
            "tokens": len(trace.token_ids),
        }
        | {f"{key}_gb": round(value / 1e9, 2) for key, value in kept.items()}
    )


def main() -> int:
    """Measure a large model from the command line; return the exit status, 1 beyond the bound."""
    parser = argparse.ArgumentParser(prog="python -m engine.bench.bounds.large", description=__doc__)
    parser.add_argument("--folder", type=Path, default=Path("build/large"))
    parser.add_argument("--format", choices=("gguf", "int4"), default="gguf")
    parser.add_argument("--most-gb", type=float, default=8.0, help="the bound, in 10^9 bytes")
    options = parser.parse_args()
    quantized: Literal["gguf", "int4"] = options.format
    folder = options.folder / quantized
    if not (folder / "config.json").exists():
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "config.json").write_text(json.dumps(CONFIG))
        try:
            (make_gguf if quantized == "gguf" else make_safetensors)(folder)
        except BaseException:
            (folder / "config.json").unlink()
            raise
    config = EngineConfig(
        model_dir=str(folder),
        endpoint="inproc://unused",
        adapter_store=str(options.folder / "store"),
        device="cpu",
        quantization=quantized,
        max_model_len=4096,
        max_num_seqs=4,
        kv_cache_bytes=1 << 28,
    )
    mapped = sum(path.stat().st_size for path in folder.glob("*.safetensors"))
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_answer, args=(config, int(options.most_gb * 1e9) + mapped, theirs))
    process.start()
    theirs.close()
    try:
        sys.stdout.write(msgspec.json.encode(ours.recv()).decode() + "\n")
    except EOFError:
        sys.stdout.write(f"not within {options.most_gb} GB\n")
    process.join()
    return 0 if process.exitcode == 0 else 1


if __name__ == "__main__":
    sys.exit(main())
