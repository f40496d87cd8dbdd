"""The division of a GPU's memory. Arithmetic alone: others measure the used memory and the needs of a step.

    total * fraction = used (weights, and whatever else is there) + peaks of steps + KV cache + adapters

The rest is for the driver's copies of captured graphs, and for needs that no profile of a few steps shows.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

from engine.cuda.accelerator import MemoryCounts
from engine.faults import is_out_of_memory
from engine.hardware import SetupError

ADAPTER_SHARE = 0.1  # of the memory that is left beside weights and a step


class Division(NamedTuple):
    """Bytes of the KV cache, and of adapters in slots."""

    kv_cache: int
    adapters: int


def divide_memory(
    memory: MemoryCounts, peak_bytes: int, fraction: float, kv_cache_bytes: int | None, adapter_bytes: int | None
) -> Division:
    """Divide the memory that steps leave between the KV cache and adapters.

    memory: with the weights loaded.
    peak_bytes: the memory of the largest steps.
    kv_cache_bytes, adapter_bytes: as configured; None: chosen here.
    fraction: the part of the device's memory that the engine may use.

    Raises SetupError: when too little is left; the message names the variables that decide.
    """
    allowed = int(memory.total * fraction)
    left = allowed - memory.used - peak_bytes
    if left <= 0:
        raise SetupError(
            f"the weights and whatever else is on the GPU take {_gib(memory.used)}, steps take {_gib(peak_bytes)}, "
            f"and LORIKEET_GPU_MEMORY_FRACTION={fraction:g} of its memory is {_gib(allowed)}: lower "
            "LORIKEET_MAX_BATCHED_TOKENS, LORIKEET_MAX_NUM_SEQS or LORIKEET_MAX_MODEL_LEN, or raise "
            "LORIKEET_GPU_MEMORY_FRACTION"
        )
    adapters = int(left * ADAPTER_SHARE) if adapter_bytes is None else adapter_bytes
    if adapters >= left:
        raise SetupError(f"LORIKEET_ADAPTER_DEVICE_BYTES is {adapters}, but only {left} bytes are left on the GPU")
    kv_cache = left - adapters if kv_cache_bytes is None else kv_cache_bytes
    if kv_cache + adapters > left:
        raise SetupError(
            f"LORIKEET_KV_CACHE_BYTES is {kv_cache}, but only {left - adapters} bytes are left on the GPU beside "
            f"{adapters} for adapters (LORIKEET_ADAPTER_DEVICE_BYTES)"
        )
    return Division(kv_cache, adapters)


@contextmanager
def explain_out_of_memory(doing: str, advice: str) -> Iterator[None]:
    """Turn an out-of-memory error in the block into a SetupError that says what was being done, and what to change."""
    try:
        yield
    except RuntimeError as error:
        if not is_out_of_memory(error):
            raise
        raise SetupError(f"the GPU's memory ran out while {doing}: {advice}") from None


def _gib(num_bytes: int) -> str:
    return f"{num_bytes / (1 << 30):.1f} GiB"
