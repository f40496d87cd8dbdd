"""A CPU as the engine's device: threads, cache and adapters, from the configuration."""

from __future__ import annotations

import os

import torch

from engine.config import EngineConfig, ModelConfig
from engine.cpu.attention import PagedCache
from engine.cpu.native import NativePath, make_decoder
from engine.cpu.path import CpuPath
from engine.cpu.quantization import make_linear, settle_format
from engine.cpu.tables import AdapterTables
from engine.cpu.threads import AdaptedThreads, linux_usage
from engine.device import AdapterIn, Device, DevicePath, blocks_within, context_length, kv_token_bytes
from engine.hardware import free_host_bytes, num_threads
from engine.lora.layer import AdapterLayout
from engine.models.checkpoint import load_weights
from engine.models.decoder import Decoder
from engine.sampling.choice import choose_on_host
from engine.transfers import HostTransfers
from kernels.cpu.decoder import CACHE_BLOCK
from kernels.cpu.library import installed

KV_CACHE_BYTES = 1 << 30
ADAPTER_BYTES = 1 << 30


def build_cpu(config: EngineConfig, model: ModelConfig, dtype: torch.dtype) -> Device:
    """Raises SetupError or UnsupportedModel."""
    most = num_threads(config.num_threads)
    torch.set_num_threads(most)
    cpu = torch.device("cpu")
    quantized = settle_format(config, cpu, dtype)
    weights = load_weights(config.model_dir, model, dtype, cpu, make_linear=make_linear(quantized))
    budget = KV_CACHE_BYTES if config.kv_cache_bytes is None else config.kv_cache_bytes
    num_blocks = blocks_within(budget, kv_token_bytes(model, dtype) * config.block_size, free_host_bytes())
    max_model_len = context_length(config.max_model_len, model, num_blocks, config.block_size)
    adapter_bytes = ADAPTER_BYTES if config.adapter_device_bytes is None else config.adapter_device_bytes
    library = installed() if quantized == "int8" and config.block_size == CACHE_BLOCK else None
    tables = None
    if library is None or dtype == torch.float16:
        table_bytes = adapter_bytes * AdapterTables.bytes_per_element(dtype) // dtype.itemsize
        tables = AdapterTables(config.max_adapters, dtype, table_bytes)

    def make_path(adapter_in: AdapterIn) -> DevicePath:
        # A number that was asked for is kept.
        threads = None if config.num_threads else AdaptedThreads(most, linux_usage, len(os.sched_getaffinity(0)))
        if tables is not None:
            cache = PagedCache(model, num_blocks * config.block_size, max_model_len, dtype)
            return CpuPath(Decoder(model, weights), cache, config.block_size, adapter_in, tables, threads)
        assert library is not None
        decoder = make_decoder(library, model, weights, num_blocks, max_model_len)
        return NativePath(decoder, model, weights.lm_head, adapter_in, threads)

    return Device(
        num_blocks=num_blocks,
        max_model_len=max_model_len,
        adapter_bytes=adapter_bytes,
        transfers=HostTransfers(),
        choose=choose_on_host,
        make_path=make_path,
        expect=_nothing if tables is None else tables.expect,
    )


def _nothing(layout: AdapterLayout) -> None:
    """Prepare nothing: adapters are multiplied where they lie."""
