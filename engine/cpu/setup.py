"""A CPU as the engine's device: threads, cache and adapters, from the configuration."""

from __future__ import annotations

import os

import torch

from engine.config import EngineConfig, ModelConfig
from engine.cpu.attention import PagedCache
from engine.cpu.native import NativePath, make_decoder
from engine.cpu.path import CpuPath
from engine.cpu.quality import CACHE_DTYPE
from engine.cpu.quantization import load_quantized, settle_format
from engine.cpu.tables import AdapterTables
from engine.cpu.threads import AdaptedThreads, linux_usage
from engine.device import (
    AdapterIn,
    Device,
    DevicePath,
    blocks_within,
    context_length,
    kv_token_bytes,
    layout_for,
    state_slots,
)
from engine.hardware import free_host_bytes, num_threads
from engine.lora.layer import AdapterLayout
from engine.models.decoder import Decoder
from engine.models.states import StateTable
from engine.sampling.choice import choose_on_host
from engine.transfers import HostTransfers
from kernels.cpu.decoder import CACHE_BLOCK
from kernels.cpu.library import installed

MOST_CACHE_BYTES = 1 << 30
CACHED_TOKENS = 128
"""Tokens of each sequence of a full batch that the KV cache has room for, where its size is left open."""
CACHE_SHARE = 4
"""The KV cache takes at most the free memory divided by this, where its size is left open."""
ADAPTER_BYTES = 1 << 30


def build_cpu(config: EngineConfig, model: ModelConfig, dtype: torch.dtype) -> Device:
    """Build the CPU's device with the weights of config.model_dir.

    Raises SetupError: when the cache does not fit in memory, or the device has no such format.
    Raises UnsupportedModel: when the engine cannot compute one of the model's layers.
    """
    most = num_threads(config.num_threads)
    torch.set_num_threads(most)
    cpu = torch.device("cpu")
    quantized = settle_format(config, cpu, dtype)
    weights = load_quantized(config.model_dir, model, quantized, dtype)
    library = installed() if quantized != "none" and config.block_size == CACHE_BLOCK else None
    # One native call computes a whole step, but for experts: PyTorch routes between native products of theirs.
    is_native = library is not None and dtype != torch.float16 and model.experts is None
    token_bytes = kv_token_bytes(model, CACHE_DTYPE if is_native else dtype)
    free_bytes = free_host_bytes()
    budget = config.kv_cache_bytes
    if budget is None:
        budget = cache_bytes(config, model, token_bytes, free_bytes)
    num_state_slots = state_slots(model, config.max_num_seqs, budget, wanted_bytes(config, model, token_bytes))
    state_bytes = 0 if model.recurrence is None else num_state_slots * model.recurrence.state_bytes
    layout = layout_for(config, model)
    block_bytes = layout.block_bytes(token_bytes, config.block_size)
    num_blocks = blocks_within(budget - state_bytes, block_bytes, free_bytes, layout.num_tables)
    max_model_len = context_length(config, model, num_blocks, layout)
    adapter_bytes = ADAPTER_BYTES if config.adapter_device_bytes is None else config.adapter_device_bytes
    tables = None
    if not is_native:
        table_bytes = adapter_bytes * AdapterTables.bytes_per_element(dtype) // dtype.itemsize
        tables = AdapterTables(config.max_adapters, dtype, table_bytes)

    def make_path(adapter_in: AdapterIn) -> DevicePath:
        # A number that was asked for is kept.
        threads = None if config.num_threads else AdaptedThreads(most, linux_usage, len(os.sched_getaffinity(0)))
        if tables is not None:
            cache = PagedCache(model, num_blocks * config.block_size, max_model_len, dtype, layout=layout)
            states = None
            if model.recurrence is not None:
                states = StateTable(model.recurrence, model.rms_norm_eps, num_state_slots, cpu)
            return CpuPath(Decoder(model, weights), cache, config.block_size, adapter_in, tables, threads, states)
        assert library is not None
        decoder = make_decoder(
            library, model, weights, num_blocks, max_model_len, cache_dtype=CACHE_DTYPE, layout=layout
        )
        return NativePath(decoder, model, weights.lm_head, adapter_in, threads)

    return Device(
        num_blocks=num_blocks,
        max_model_len=max_model_len,
        token_bytes=token_bytes,
        adapter_bytes=adapter_bytes,
        transfers=HostTransfers(),
        choose=choose_on_host,
        make_path=make_path,
        expect=_do_nothing if tables is None else tables.expect,
        # Tables have adapters in float32; matrices of experts are multiplied where they lie.
        keeps_bfloat16=is_native or (model.experts is not None and installed() is not None and dtype == torch.float32),
        pauses=is_native,
        num_state_slots=num_state_slots,
        layout=layout,
    )


def cache_bytes(config: EngineConfig, model: ModelConfig, token_bytes: int, free_bytes: int | None) -> int:
    """Return the size in bytes of the KV cache where the settings leave it open.

    The cache has room for a full batch of sequences of CACHED_TOKENS tokens, and for one of the longest, within bounds.
    When the cache is full, new requests wait, and the latest running ones begin again later.
    """
    wanted = wanted_bytes(config, model, token_bytes)
    if model.recurrence is not None:
        wanted += 2 * config.max_num_seqs * model.recurrence.state_bytes
    most = MOST_CACHE_BYTES if free_bytes is None else min(MOST_CACHE_BYTES, free_bytes // CACHE_SHARE)
    return max(min(wanted, most), 2 * config.block_size * token_bytes)


def wanted_bytes(config: EngineConfig, model: ModelConfig, token_bytes: int) -> int:
    """Return the bytes of the blocks that a full batch, and one of the longest sequences, can make use of."""
    longest = min(config.max_model_len or model.max_position, model.max_position)
    longest += -longest % config.block_size
    return max(config.max_num_seqs * CACHED_TOKENS, longest) * token_bytes


def _do_nothing(layout: AdapterLayout) -> None:
    """Do nothing with the layout of an adapter to come: adapters are multiplied where they lie."""
