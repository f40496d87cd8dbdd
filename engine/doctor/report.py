"""The report of one machine: plain data, which is printed as JSON."""

from __future__ import annotations

import msgspec


class Gpu(msgspec.Struct, frozen=True):
    """One GPU that PyTorch sees."""

    name: str
    capability: str
    """The compute capability, such as `9.0`."""
    memory_bytes: int
    free_bytes: int


class Machine(msgspec.Struct, frozen=True, kw_only=True):
    """The processors, memory and load of this machine, as the system tells them without PyTorch."""

    processor: str
    features: tuple[str, ...]
    """The processor's features that products of matrices can use, as the kernel names them."""
    num_processors: int
    """Processors that this process may run on."""
    quota: float | None
    """Processors' worth of time that the control group allows; None without a bound."""
    memory_bytes: int
    available_bytes: int
    """Memory that can be taken without swapping."""
    memory_limit_bytes: int | None
    """The bound of the control group; None without one."""
    load: float
    """The load average of the last minute."""
    busy: float
    """Processors' worth of time that other processes used while the machine was watched."""


class Choice(msgspec.Struct, frozen=True, kw_only=True):
    """The way of computing that an engine with the same settings chooses on this machine."""

    device: str
    """`cpu` or `cuda`."""
    dtype: str
    """The number format of the weights, such as `bfloat16`."""
    products: str
    """The code that multiplies by the base model's matrices: `torch`, or a native path such as `int8 avx2`."""
    native_paths: tuple[str, ...]
    """The paths of the native kernels that this processor can run, the slowest first; empty without the library."""
    num_threads: int
    reasons: tuple[str, ...]
    """Sentences that give the reasons for the choice."""
    advice: tuple[str, ...]
    """Sentences that say what would make the engine faster; empty where nothing would."""


class Measurement(msgspec.Struct, frozen=True, kw_only=True):
    """A short measurement of the chosen way, with matrices of the demo model's shapes."""

    read_gb_per_s: float
    """The rate at which all threads together read memory, in 10^9 bytes a second."""
    weights_bytes: int
    """Bytes of the matrices that one step reads."""
    floor_ms: float
    """Milliseconds that reading weights_bytes takes at read_gb_per_s."""
    products_ms: float
    """Milliseconds that one step's products for one row take, the median."""


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """All that the doctor found out about one machine."""

    machine: Machine
    gpus: tuple[Gpu, ...]
    choice: Choice
    measured: Measurement | None
    """The measurement; None where none was asked for, or the device is not a CPU."""
