"""A GPU as the engine's device: weights, one profiled step, the memory divided, graphs captured."""

from __future__ import annotations

import logging
from pathlib import Path

import torch
from torch import Tensor

from engine.config import EngineConfig, ModelConfig, UnsupportedModel
from engine.cuda.accelerator import Accelerator
from engine.cuda.adapters import DeviceSlots
from engine.cuda.attention import PagedCache
from engine.cuda.copies import SideCopies
from engine.cuda.graphs import StepLimits
from engine.cuda.memory import divide_memory, explain_out_of_memory
from engine.cuda.norm import TritonNorm
from engine.cuda.path import CudaPath, StepDecoder
from engine.cuda.profile import peak_of_largest_steps
from engine.cuda.sampling import TritonChoice, penalize_rows_
from engine.cuda.transfers import PinnedTransfers
from engine.device import AdapterIn, Device, blocks_within, context_length, kv_token_bytes, layout_for, state_slots
from engine.lora.layer import groups_of, shapes_of
from engine.models.decoder import Decoder
from engine.models.states import StateTable
from engine.models.weights import GroupedProduct, ModelWeights, StackedMatrices, by_expert
from engine.sampling.sampler import Sampler
from kernels.gpu.activation import gelu_mul, silu_mul
from kernels.gpu.experts import TritonGrouped, sorted_rows

log = logging.getLogger(__name__)

LARGEST_GROUP, LARGEST_HEAD = 8, 256
ALIGNED_BYTES = 16


def build_cuda(config: EngineConfig, model: ModelConfig, dtype: torch.dtype, accelerator: Accelerator) -> Device:
    """Build the GPU's device with the weights of config.model_dir.

    Raises SetupError: when weights, adapters and cache do not fit on the GPU.
    Raises UnsupportedModel: when the kernels cannot compute the model.
    """
    from engine.models.checkpoint import load_weights  # benchmarks of random weights need no safetensors

    check_model(model, dtype)
    with explain_out_of_memory("loading the weights", "this model needs a larger GPU, or LORIKEET_DTYPE=bfloat16"):
        if config.quantization == "none":
            weights = load_weights(
                config.model_dir, model, dtype, accelerator.device, TritonNorm, make_grouped=triton_grouped
            )
        else:
            weights = _load_packed(config, model, dtype, accelerator.device)
    return build_around(config, model, weights, accelerator)


def triton_grouped(matrices: StackedMatrices, bias: Tensor | None, number: int) -> GroupedProduct:
    """Return the products with each expert's matrices (`engine.models.weights.MakeGrouped`).

    matrices: one for each expert, in order. bias: [E * out]; None without one. number: the number of experts.
    """
    return TritonGrouped(*by_expert(matrices, bias, number))


def _load_packed(config: EngineConfig, model: ModelConfig, dtype: torch.dtype, device: torch.device) -> ModelWeights:
    """Return weights whose matrices are the checkpoint's own numbers of few bits.

    Raises UnsupportedModel: when the checkpoint's matrices have a format that the kernels do not compute.
    """
    from engine.cuda.quantized import PackedProducts
    from engine.models.checkpoint import load_weights
    from engine.models.packed.files import PackedFiles

    with PackedFiles(Path(config.model_dir), model) as files:
        made = PackedProducts(files, device, rounds_inputs=config.quantization == "w8a8")
        return load_weights(config.model_dir, model, dtype, device, TritonNorm, made.linear)


def build_around(config: EngineConfig, model: ModelConfig, weights: ModelWeights, accelerator: Accelerator) -> Device:
    """Build the GPU's device around weights that are on it.

    Raises SetupError: when adapters and cache do not fit on the GPU.
    """
    decoder = Decoder(model, weights, silu_mul if model.activation == "silu" else gelu_mul, sorted_rows)
    # Runs of prompts' rows through states are a loop over sequences, which no graph could hold.
    return build_with(config, decoder, accelerator, use_graphs=model.recurrence is None)


def build_with(config: EngineConfig, decoder: StepDecoder, accelerator: Accelerator, *, use_graphs: bool) -> Device:
    """Build the GPU's device around a decoder that is on it. use_graphs: steps are captured in graphs.

    Raises SetupError: when the largest steps, adapters and cache do not fit on the GPU.
    """
    model, dtype, device = decoder.config, decoder.dtype, accelerator.device
    in_float8 = config.kv_dtype == "fp8"
    transfers = PinnedTransfers(accelerator)
    choose = TritonChoice(transfers)
    slots = DeviceSlots(
        model.num_layers,
        config.max_adapters,
        config.max_adapter_rank,
        transfers,
        device,
        groups_of(model),
        shapes_of(model),
    )
    copies = SideCopies(accelerator, model.num_layers)
    longest = min(config.max_model_len or model.max_position, model.max_position)
    limits, layout = step_limits(config, longest), layout_for(config, model)
    advice = "lower LORIKEET_MAX_BATCHED_TOKENS, LORIKEET_MAX_NUM_SEQS or LORIKEET_MAX_MODEL_LEN"
    with explain_out_of_memory("first steps were computed", advice):
        sampler = Sampler(model.eos_token_ids, transfers, choose, penalize_rows_)
        peak_bytes = peak_of_largest_steps(
            accelerator, decoder, slots, sampler, limits, config.block_size, layout, in_float8=in_float8
        )
    memory = accelerator.memory()
    division = divide_memory(
        memory, peak_bytes, config.gpu_memory_fraction, config.kv_cache_bytes, config.adapter_device_bytes
    )
    log.info("memory in bytes: %d of %d used, %d for steps, %s", memory.used, memory.total, peak_bytes, division)
    token_bytes = kv_token_bytes(model, dtype, in_float8=in_float8)
    num_state_slots = state_slots(model, config.max_num_seqs, division.kv_cache, division.kv_cache)
    state_bytes = 0 if model.recurrence is None else num_state_slots * model.recurrence.state_bytes
    block_bytes = layout.block_bytes(token_bytes, config.block_size)
    num_blocks = blocks_within(division.kv_cache - state_bytes, block_bytes, None, layout.num_tables)
    max_model_len = context_length(config, model, num_blocks, layout)

    def make_path(adapter_in: AdapterIn) -> CudaPath:
        with explain_out_of_memory(
            "the KV cache was made", "lower LORIKEET_GPU_MEMORY_FRACTION or LORIKEET_KV_CACHE_BYTES"
        ):
            sizes = num_blocks, config.block_size, max_model_len
            cache = PagedCache(model, *sizes, dtype, device, layout=layout, in_float8=in_float8)
            states = None
            if model.recurrence is not None:
                states = StateTable(model.recurrence, model.rms_norm_eps, num_state_slots, device)
        with explain_out_of_memory(
            "graphs were captured", "lower LORIKEET_GPU_MEMORY_FRACTION or LORIKEET_MAX_NUM_SEQS"
        ):
            final = step_limits(config, max_model_len)
            path = CudaPath(accelerator, decoder, cache, slots, adapter_in, final, use_graphs=use_graphs, states=states)
        with explain_out_of_memory("memory of adapters was taken", "lower LORIKEET_ADAPTER_DEVICE_BYTES"):
            copies.reserve(division.adapters)  # last: a capture gives unused memory back to the driver
        return path

    def vacate(slot: int) -> None:
        slots.clear(slot)
        copies.give_back()

    return Device(
        num_blocks=num_blocks,
        max_model_len=max_model_len,
        token_bytes=token_bytes,
        adapter_bytes=division.adapters,
        transfers=transfers,
        choose=choose,
        make_path=make_path,
        adjust=penalize_rows_,
        pin=device.type == "cuda",
        to_device=copies.to_device,
        vacate=vacate,
        num_state_slots=num_state_slots,
        layout=layout,
    )


def step_limits(config: EngineConfig, max_context: int) -> StepLimits:
    """Return the limits of a step.

    Drafts make rows of their own; every other sequence of a step is a chunk of a prompt.

    max_context: the tokens of the longest sequence.
    """
    decode_rows = min(config.max_num_seqs * (1 + config.num_draft_tokens), config.max_batched_tokens)
    prefills = min(config.max_num_seqs, config.max_batched_tokens)
    sequences = min(decode_rows + prefills, config.max_batched_tokens)
    return StepLimits(config.max_batched_tokens, decode_rows, prefills, sequences, max_context)


def check_model(model: ModelConfig, dtype: torch.dtype) -> None:
    """Check that the kernels take the model's shapes.

    Raises UnsupportedModel: when they do not.
    """
    if model.has_sinks:
        raise UnsupportedModel(f"config.json: attention of {model.family} has sinks, which needs a CPU for now")
    if model.head_dim % 16 or model.head_dim > LARGEST_HEAD:
        raise UnsupportedModel(
            f"config.json: head_dim is {model.head_dim}; on a GPU a multiple of 16 up to {LARGEST_HEAD}"
        )
    group = model.num_heads // model.num_kv_heads
    if group > LARGEST_GROUP:
        raise UnsupportedModel(
            f"config.json: {group} heads share a key (num_attention_heads over num_key_value_heads); on a GPU at most "
            f"{LARGEST_GROUP}"
        )
    widths = {width for name, shape in shapes_of(model).items() if name != model.shared_gate for width in shape}
    if any(width * dtype.itemsize % ALIGNED_BYTES for width in widths):
        raise UnsupportedModel(f"config.json: the projections' widths {sorted(widths)} must be multiples of 8 on a GPU")
