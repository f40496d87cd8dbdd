"""Builds an engine from an `EngineConfig`: the device, and the parts around it wired together.

Takes no part in steps.
"""

from __future__ import annotations

import hashlib
import logging
import time
from importlib.metadata import version
from pathlib import Path

import msgspec
import torch

from adapters.stores import open_store
from engine.compilations import Compilations
from engine.config import EngineConfig, ModelConfig, load_model_config, model_digest
from engine.config.model import Quantized
from engine.core import EngineCore
from engine.cpu.quantization import check_unquantized, settle_format, why_unquantized
from engine.cpu.setup import build_cpu
from engine.device import BuildDevice, Device, tokens_ahead
from engine.grammar.compiler import GrammarCompiler
from engine.hardware import SetupError, batched_tokens, check_kv_dtype, resolve_device, resolve_dtype, use_huge_pages
from engine.lora.loader import AdapterLoader, HostTier, loading_executor
from engine.lora.pool import AdapterPool
from engine.mailbox import Mailbox, Wake
from engine.model_runner import ModelRunner
from engine.models.checkpoint import read_classifier
from engine.probes import Probes
from engine.protocol import EngineLimits, Pooling
from engine.sampling.sampler import Sampler
from engine.sampling.scores import ClassifierScore, Score, TokenScore
from engine.scheduling.block_manager import BlockManager
from engine.scheduling.cache.state_slots import StateSlots
from engine.scheduling.limits import BatchLimits, Limits
from engine.scheduling.scheduler import Scheduler
from engine.server import EngineServer
from engine.statistics import Statistics
from engine.version import VERSION
from kernels.cpu.library import installed

log = logging.getLogger(__name__)

GPU_BATCH_STEP_MS, CPU_BATCH_STEP_MS, PAUSING_BATCH_STEP_MS = 30.0, 50.0, 120.0
CPU_EFFICIENCY, CPU_ONE_ROW_STEPS = 0.95, 2.0
"""`efficiency` and `num_one_row_steps` of `BatchLimits` on a CPU, where a step of a large model takes longer than 50 ms
since it reads all weights."""


def build_engine(config: EngineConfig) -> tuple[EngineCore, EngineServer]:
    """Load the model and bind the endpoint.

    Raises SetupError, StoreFailure or UnsupportedModel: when `build_core` does.
    Raises BadKey: when the host's keys cannot be read.
    Raises zmq.ZMQError: when the endpoint is taken or wrong.
    """
    use_huge_pages()
    mailbox = Mailbox()
    config = with_settled_quantization(config)
    core, limits = build_core(config, mailbox)
    digest = model_digest(config.model_dir)
    where = resolve_device(config.device)
    name = torch.cuda.get_device_name(where) if where.type == "cuda" else "cpu"
    dtype = str(resolve_dtype(config.dtype, where))
    quantized = config.quantization
    model = load_model_config(config.model_dir, config.decoder)
    is_general = model.decoder == "transformers"
    products = f"transformers {version('transformers')}" if is_general else quantized
    formats = _formats(dtype.removeprefix("torch."), quantized, where, model.quantized, is_general=is_general)
    in_float8 = ", keys and values in fp8" if config.kv_dtype == "fp8" else ""
    server = EngineServer(
        config.endpoint,
        digest,
        limits,
        mailbox,
        fingerprint=_fingerprint(digest, name, dtype, products + in_float8),
        device=name,
        dtype=formats + in_float8,
        unattended_s=config.unattended_s,
        link_dir=config.link_dir,
    )
    return core, server


def with_settled_quantization(config: EngineConfig) -> EngineConfig:
    """Return the configuration with the quantization that `auto` stands for with this model on this machine.

    Raises SetupError: when the device has no such format.
    Raises UnsupportedModel: when the engine cannot compute the model.
    """
    check_kv_dtype(config.kv_dtype, resolve_device(config.device))
    device = resolve_device(config.device)
    why = why_unquantized(load_model_config(config.model_dir, config.decoder), device)
    if why:
        check_unquantized(config.quantization, why)
        return msgspec.structs.replace(config, quantization="none")
    quantized = settle_format(config, device, resolve_dtype(config.dtype, device))
    return msgspec.structs.replace(config, quantization=quantized)


def _formats(
    dtype: str, quantized: str, where: torch.device, of_files: Quantized | None = None, *, is_general: bool
) -> str:
    """Return the number formats for people, such as `bfloat16` or `float32, products in int8 by avx2`.

    of_files: the way in which files hold matrices in few bits, which is added at the end. is_general: True where
    transformers computes the model, which the text then says.
    """
    if is_general:
        return f"{dtype} through transformers (slower)"
    library = installed()
    by = "Triton" if where.type == "cuda" else "" if library is None else library.paths[-1]
    products = dtype if quantized == "none" or not by else f"{dtype}, products in {quantized} by {by}"
    return products if of_files is None else f"{products}, of files in {of_files}"


def _fingerprint(digest: str, device: str, dtype: str, products: str) -> str:
    """Return the fingerprint of `protocol.Welcome`, which is equal for engines that compute alike.

    The number of threads is left out: it changes a sum no more than other requests in the same step do.
    """
    parts = (digest, VERSION, torch.__version__, device, dtype, products)
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()


def build_core(
    config: EngineConfig, mailbox: Mailbox, build_device: BuildDevice | None = None
) -> tuple[EngineCore, EngineLimits]:
    """Build everything of an engine but its socket.

    build_device: takes the place of the builder that config.device names.

    Raises SetupError: when the model does not fit on the device, or a setting does not fit the device.
    Raises StoreFailure: when the adapter store cannot be opened.
    Raises UnsupportedModel: when the engine cannot compute the model.
    """
    where = resolve_device(config.device)
    config = with_settled_quantization(config)  # before anything is loaded
    config = msgspec.structs.replace(config, max_batched_tokens=batched_tokens(config.max_batched_tokens, where))
    dtype = resolve_dtype(config.dtype, where)
    model = load_model_config(config.model_dir, config.decoder)
    log.info("loading %s in %s on %s", config.model_dir, dtype, where)
    device = (build_device or _builder_for(where, model))(config, model, dtype)
    model = device.model or model
    host = HostTier(config.adapter_host_bytes, pinned=device.pin)
    pool = build_adapter_pool(config, model, dtype, device, host, mailbox)
    score = None if device.make_runner is not None else _score_of(config, model)
    states = StateSlots(device.num_state_slots) if device.num_state_slots else None
    num_ahead = tokens_ahead(config)
    blocks = BlockManager(device.num_blocks, config.block_size, device.layout, states, num_ahead)
    bounds = scheduler_limits(config, model, device, where)
    scheduler = Scheduler(blocks, pool, bounds, time.monotonic)
    compiler = GrammarCompiler(
        config.model_dir, model.vocab_size, model.eos_token_ids, wake=lambda: mailbox.command(Wake())
    )
    compilations = Compilations(scheduler, compiler)
    sampler = Sampler(model.eos_token_ids, device.transfers, device.choose, device.adjust)
    runner = (
        ModelRunner(device.make_path(pool.adapter), sampler, device.transfers, score, pauses=device.pauses)
        if device.make_runner is None
        else device.make_runner(pool.adapter)
    )
    statistics = Statistics(scheduler, blocks, pool, host, compilations)
    if config.max_model_len > device.max_model_len:
        capped = (
            "max_model_len is %d, but the context is %d: the model has %d positions, the KV cache room for %d tokens"
        )
        num_tokens = device.max_model_len
        log.warning(capped, config.max_model_len, device.max_model_len, model.max_position, num_tokens)
    num_blocks = device.num_blocks // device.layout.num_tables
    log.info("ready: %d KV blocks of %d tokens, context %d", num_blocks, config.block_size, device.max_model_len)
    if device.layout.num_tables > 1:
        windows = ", ".join("all tokens" if each is None else f"{each} tokens" for each in device.layout.windows)
        log.info("blocks are %d layers deep, in tables that see %s", device.layout.depth, windows)
    limits = EngineLimits(device.max_model_len, config.max_num_seqs, config.max_waiting, config.block_size, num_blocks)
    probes = Probes(pool, model.vocab_size, device.max_model_len, pooling=_probed(model))
    return EngineCore(mailbox, scheduler, pool, runner, compilations, statistics, probes), limits


def _probed(model: ModelConfig) -> Pooling | None:
    """Return the pooling by which adapters are probed on a model that makes no text; None on one that does."""
    return {"text": None, "embed": model.task.pooling, "rerank": "score"}[model.task.kind]


def _score_of(config: EngineConfig, model: ModelConfig) -> Score | None:
    """Return the way in which a decoder that ranks scores a text; None for any other model."""
    if model.task.scored_by == "tokens":
        return TokenScore(*model.task.tokens)
    return ClassifierScore(read_classifier(config.model_dir, model)) if model.task.scored_by else None


def build_adapter_pool(
    config: EngineConfig, model: ModelConfig, dtype: torch.dtype, device: Device, host: HostTier, mailbox: Mailbox
) -> AdapterPool:
    """Return the pool of adapter slots, and of the loading thread that fills them."""
    if "://" in config.adapter_store and not config.adapter_cache_dir:
        raise SetupError(f"the adapter store {config.adapter_store} needs a folder for its cache (--adapter-cache-dir)")
    store = open_store(config.adapter_store, Path(config.adapter_cache_dir), config.adapter_cache_bytes)
    loader = AdapterLoader(
        store,
        model,
        dtype,
        host=host,
        expect=device.expect,
        pin=device.pin,
        keeps_bfloat16=device.keeps_bfloat16,
        max_rank=config.max_adapter_rank,
    )
    return AdapterPool(
        loader.load,
        config.max_adapters,
        wake=lambda: mailbox.command(Wake()),
        max_bytes=device.adapter_bytes,
        to_device=device.to_device,
        vacate=device.vacate,
        executor=loading_executor(),
    )


def scheduler_limits(config: EngineConfig, model: ModelConfig, device: Device, where: torch.device) -> Limits:
    """Return the limits of the scheduler for a model on a device."""
    return Limits(
        max_num_seqs=config.max_num_seqs,
        max_batched_tokens=config.max_batched_tokens,
        max_waiting=config.max_waiting,
        max_model_len=device.max_model_len,
        vocab_size=model.vocab_size,
        eos_token_ids=frozenset(model.eos_token_ids),
        token_bytes=device.token_bytes,
        task=model.task.kind,
        caches_prefixes=not model.is_encoder,
        length_switch=model.length_switch,
        num_draft_tokens=config.num_draft_tokens if model.recurrence is None else 0,  # a state takes no token back
        batch=batch_limits(config, where, pauses=device.pauses),
    )


def batch_limits(config: EngineConfig, where: torch.device, *, pauses: bool) -> BatchLimits:
    """Return the limits of the batch band of an engine on this device. pauses: True if its steps can pause."""
    is_free = not config.batch_step_ms and where.type != "cuda"
    own_ms = GPU_BATCH_STEP_MS if not is_free else PAUSING_BATCH_STEP_MS if pauses else CPU_BATCH_STEP_MS
    step_ms = config.batch_step_ms or own_ms
    return BatchLimits(
        lengthening=config.batch_lengthening,
        step_s=step_ms / 1e3,
        efficiency=CPU_EFFICIENCY if is_free else 0.0,
        num_one_row_steps=CPU_ONE_ROW_STEPS if is_free else 0.0,
        share=config.batch_share,
    )


def _builder_for(where: torch.device, model: ModelConfig) -> BuildDevice:
    """Return the function that builds the device. The GPU's part imports Triton, which not every machine has.

    Transformers takes seconds to import, so that only engines that compute by it do.
    """
    if model.is_encoder:
        from engine.cpu.encoder import build_encoder

        return lambda config, model, dtype: build_encoder(config, model, dtype, where)
    if model.decoder == "transformers" and where.type != "cuda":
        from engine.cpu.general import build_general_cpu

        return build_general_cpu
    if where.type != "cuda":
        return build_cpu
    from engine.cuda.nvidia import CudaAccelerator
    from engine.cuda.setup import build_cuda

    if model.decoder == "transformers":
        from engine.cuda.general import build_general_cuda

        return lambda config, model, dtype: build_general_cuda(config, model, dtype, CudaAccelerator(where))
    return lambda config, model, dtype: build_cuda(config, model, dtype, CudaAccelerator(where))
