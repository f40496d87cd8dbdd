"""An encoder on a CPU, or on a GPU by PyTorch's operations: from the configuration to the runner of its plans."""

from __future__ import annotations

import os
from collections.abc import Sequence as Many

import msgspec
import torch

from engine.config import EngineConfig, ModelConfig
from engine.cpu.lora import Segment
from engine.cpu.setup import ADAPTER_BYTES
from engine.cpu.tables import AdapterTables
from engine.cpu.threads import AdaptedThreads, linux_usage
from engine.device import AdapterIn, Device, DevicePath, kv_token_bytes
from engine.hardware import num_threads
from engine.models.decoder import StepLora
from engine.models.encoder.build import load_encoder
from engine.models.encoder.runner import AdaptedRows, EncoderRunner
from engine.sampling.choice import choose_on_host
from engine.transfers import HostTransfers

MOST_BLOCKS = 1 << 18
"""The most cache blocks that the scheduler may count. An encoder caches nothing, so blocks take no memory."""


def build_encoder(config: EngineConfig, model: ModelConfig, dtype: torch.dtype, device: torch.device) -> Device:
    """Build the device around an encoder. On a GPU it takes no adapters.

    Raises UnsupportedModel: when the encoder has a layer that the engine cannot compute.
    """
    most = num_threads(config.num_threads)
    is_cpu = device.type == "cpu"
    if is_cpu:
        torch.set_num_threads(most)
    model, encoder = load_encoder(config.model_dir, model, dtype, device)
    if not is_cpu:
        model = msgspec.structs.replace(model, modules=(), groups=())
    max_model_len = min(config.max_model_len or model.max_position, model.max_position)
    per_text = -(-max_model_len // config.block_size) + 1
    num_blocks = max(2 * per_text, min(config.max_num_seqs * per_text, MOST_BLOCKS))
    adapter_bytes = ADAPTER_BYTES if config.adapter_device_bytes is None else config.adapter_device_bytes
    table_bytes = adapter_bytes * AdapterTables.bytes_per_element(dtype) // dtype.itemsize
    tables = AdapterTables(config.max_adapters, dtype, table_bytes)

    def make_runner(adapter_in: AdapterIn) -> EncoderRunner:
        # A number that was asked for is kept.
        adapts = is_cpu and not config.num_threads
        threads = AdaptedThreads(most, linux_usage, len(os.sched_getaffinity(0))) if adapts else None
        before = _do_nothing if threads is None else threads.adapt
        return EncoderRunner(encoder, model.task.pooling, adapter_in, make_lora, before)

    def make_lora(parts: Many[AdaptedRows]) -> StepLora | None:
        return tables.step([Segment(part.adapter, part.first, part.last) for part in parts])

    return Device(
        num_blocks=num_blocks,
        max_model_len=max_model_len,
        token_bytes=kv_token_bytes(model, dtype),
        adapter_bytes=adapter_bytes,
        transfers=HostTransfers(),
        choose=choose_on_host,
        make_path=_refuse_path,
        expect=tables.expect,
        model=model,
        make_runner=make_runner,
    )


def _refuse_path(adapter_in: AdapterIn) -> DevicePath:
    raise NotImplementedError("an encoder has a runner of its own")


def _do_nothing() -> None:
    """Do nothing before a step: the number of threads is fixed."""
