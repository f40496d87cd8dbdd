"""From an `EngineConfig` to an engine: device, dtype, memory, and the parts wired together. No part of any step."""

from __future__ import annotations

import logging
import os
import time
from pathlib import Path

import torch

from adapters.store import AdapterStore
from engine.compilations import Compilations
from engine.config import EngineConfig, ModelConfig, load_model_config, model_digest
from engine.core import EngineCore
from engine.grammar.compiler import GrammarCompiler
from engine.lora.loader import AdapterLoader, HostTier, loading_executor
from engine.lora.pool import AdapterPool
from engine.lora.table import AdapterTables
from engine.mailbox import Mailbox, Wake
from engine.model_runner import ModelRunner
from engine.models.decoder import Decoder
from engine.models.weights import load_weights
from engine.protocol import EngineLimits
from engine.scheduling.block_manager import BlockManager
from engine.scheduling.limits import Limits
from engine.scheduling.scheduler import Scheduler
from engine.server import EngineServer
from engine.statistics import Statistics

log = logging.getLogger(__name__)

CPU_KV_CACHE_BYTES = 1 << 30
GPU_KV_CACHE_SHARE = 0.85
CPU_ADAPTER_BYTES = 1 << 30
GPU_ADAPTER_SHARE = 0.1


class SetupError(ValueError):
    """The engine can't start as configured; the message says what to change."""


def build_engine(config: EngineConfig) -> tuple[EngineCore, EngineServer]:
    """Load the model and bind the endpoint. Raises SetupError, UnsupportedModel or zmq.ZMQError."""
    use_huge_pages()
    mailbox = Mailbox()
    core, limits = build_core(config, mailbox)
    return core, EngineServer(config.endpoint, model_digest(config.model_dir), limits, mailbox)


def build_core(config: EngineConfig, mailbox: Mailbox) -> tuple[EngineCore, EngineLimits]:
    """Everything of an engine but its socket. Raises SetupError or UnsupportedModel."""
    device = resolve_device(config.device)
    dtype = resolve_dtype(config.dtype, device)
    if device.type == "cpu":
        torch.set_num_threads(num_threads(config.num_threads))
    model = load_model_config(config.model_dir)
    log.info("loading %s in %s on %s", config.model_dir, dtype, device)
    weights = load_weights(config.model_dir, model, dtype, device)
    num_blocks = num_kv_blocks(config, model, dtype, device)
    max_model_len = min(config.max_model_len or model.max_position, model.max_position, num_blocks * config.block_size)
    decoder = Decoder(model, weights, max_model_len)
    tables = AdapterTables(config.max_adapters, dtype, device, table_bytes(config, dtype, device))
    host = HostTier(config.adapter_host_bytes)
    loader = AdapterLoader(
        AdapterStore(Path(config.adapter_store)), model, dtype, device, host=host, expect=tables.expect
    )
    pool = build_adapter_pool(config, device, loader, mailbox)
    blocks = BlockManager(num_blocks, config.block_size)
    scheduler = Scheduler(blocks, pool, scheduler_limits(config, model, dtype, max_model_len), time.monotonic)
    compiler = GrammarCompiler(
        config.model_dir, model.vocab_size, model.eos_token_ids, wake=lambda: mailbox.command(Wake())
    )
    compilations = Compilations(scheduler, compiler)
    runner = ModelRunner(decoder, config, num_blocks, pool.adapter, tables)
    statistics = Statistics(scheduler, blocks, pool, host, compilations)
    log.info("ready: %d KV blocks of %d tokens, context %d", num_blocks, config.block_size, max_model_len)
    limits = EngineLimits(max_model_len, config.max_num_seqs, config.max_waiting, config.block_size, num_blocks)
    return EngineCore(mailbox, scheduler, pool, runner, compilations, statistics), limits


def build_adapter_pool(
    config: EngineConfig, device: torch.device, loader: AdapterLoader, mailbox: Mailbox
) -> AdapterPool:
    """The slots, and the loading thread that fills them."""
    return AdapterPool(
        loader.load,
        config.max_adapters,
        wake=lambda: mailbox.command(Wake()),
        max_bytes=adapter_device_bytes(config, device),
        to_device=loader.to_device if device.type == "cuda" else None,
        executor=loading_executor(),
    )


def scheduler_limits(config: EngineConfig, model: ModelConfig, dtype: torch.dtype, max_model_len: int) -> Limits:
    return Limits(
        max_num_seqs=config.max_num_seqs,
        max_batched_tokens=config.max_batched_tokens,
        max_waiting=config.max_waiting,
        max_model_len=max_model_len,
        vocab_size=model.vocab_size,
        eos_token_ids=frozenset(model.eos_token_ids),
        token_bytes=kv_token_bytes(model, dtype),
        num_draft_tokens=config.num_draft_tokens,
    )


def use_huge_pages() -> None:
    """Where the system gives them on request: weights and tables in them are read a tenth faster. PyTorch reads the
    variable at its first allocation, so a program calls this first."""
    os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")


def adapter_device_bytes(config: EngineConfig, device: torch.device) -> int:
    """What adapters in slots may take: as configured, else 1 GiB on a CPU, a tenth of the free memory on a GPU."""
    if config.adapter_device_bytes is not None:
        return config.adapter_device_bytes
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0] * GPU_ADAPTER_SHARE)
    return CPU_ADAPTER_BYTES


def table_bytes(config: EngineConfig, dtype: torch.dtype, device: torch.device) -> int:
    """What the same adapters take in tables."""
    return adapter_device_bytes(config, device) * AdapterTables.bytes_per_element(dtype) // dtype.itemsize


def num_threads(asked: int) -> int:
    """0: every processor this process may use. More than there are only get in each other's way."""
    available = len(os.sched_getaffinity(0))
    if asked > available:
        raise SetupError(f"LORIKEET_NUM_THREADS is {asked}, but only {available} processors can be used")
    return asked or available


def resolve_device(name: str) -> torch.device:
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    if name == "cuda" and not torch.cuda.is_available():
        raise SetupError("LORIKEET_DEVICE is cuda, but PyTorch sees no CUDA device; set it to cpu or auto")
    return torch.device(name)


def resolve_dtype(name: str, device: torch.device) -> torch.dtype:
    """auto: bfloat16 where the hardware multiplies it, else float32 on a CPU and float16 on a GPU."""
    if name != "auto":
        return {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}[name]
    if device.type == "cuda":
        return torch.bfloat16 if torch.cuda.is_bf16_supported(including_emulation=False) else torch.float16
    return torch.bfloat16 if _cpu_multiplies_bf16() else torch.float32


def num_kv_blocks(config: EngineConfig, model: ModelConfig, dtype: torch.dtype, device: torch.device) -> int:
    """How many blocks the cache's bytes make: 1 GiB on a CPU, most of the free memory on a GPU, or as configured."""
    budget = config.kv_cache_bytes
    if budget is None and device.type == "cuda":
        free = torch.cuda.mem_get_info(device)[0]
        free -= adapter_device_bytes(config, device) + table_bytes(config, dtype, device)
        budget = int(free * GPU_KV_CACHE_SHARE)
    elif budget is None:
        budget = CPU_KV_CACHE_BYTES
    block_bytes = kv_token_bytes(model, dtype) * config.block_size
    available = _available_bytes(device)
    if available is not None and budget > available:
        raise SetupError(f"LORIKEET_KV_CACHE_BYTES is {budget}, but only {available} bytes of memory are free")
    num_blocks = budget // block_bytes
    if num_blocks < 2:
        raise SetupError(f"LORIKEET_KV_CACHE_BYTES is {budget}; one block of this model takes {block_bytes} bytes")
    return num_blocks


def kv_token_bytes(model: ModelConfig, dtype: torch.dtype) -> int:
    """Of one token's keys and values in all layers."""
    return 2 * model.num_layers * model.num_kv_heads * model.head_dim * dtype.itemsize


def _available_bytes(device: torch.device) -> int | None:
    """Memory that can still be taken; None where the system does not say."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:")), None)


def _cpu_multiplies_bf16() -> bool:
    """AVX512-BF16, AMX or ARM's BF16: without them bfloat16 is emulated and slower than float32."""
    try:
        flags = Path("/proc/cpuinfo").read_text()
    except OSError:
        return False
    return any(flag in flags for flag in ("avx512_bf16", "amx_bf16", " bf16"))
