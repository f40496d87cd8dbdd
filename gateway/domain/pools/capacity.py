"""The memory that a replica needs, the memory that hosts have, and the places where a replica finds room.

Pure arithmetic.

The need is an estimate of the most that an engine with these settings takes: an engine fills the memory for adapters
only as adapters are used. A replica on processors takes memory of its host; a replica on an accelerator takes memory of
one accelerator, and beside it some of the host.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence, Set
from fractions import Fraction
from typing import Literal

import msgspec

from engine.config import EngineConfig, ModelConfig

Device = Literal["auto", "cpu", "cuda"]
Placement = Literal["local", "ray"]
"""The way in which a host's engines get their machines: `local`, on the host itself, or `ray`, for a cluster."""

PROCESS_BYTES = 512 << 20
"""Bytes of the interpreter, PyTorch and the memory of steps, on processors."""
GPU_STEP_BYTES = 1 << 30
"""Bytes of CUDA's context, graphs and the memory of steps, on an accelerator."""
GPU_HOST_BYTES = 3 << 30
"""Bytes of the host's memory that an engine on an accelerator takes as well."""
DEFAULT_KV_CACHE_BYTES = DEFAULT_ADAPTER_BYTES = 1 << 30
"""The KV cache that an engine on processors chooses where the settings leave it open."""

_ITEM_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}


_HELD_IN_8_BITS, _HELD_IN_4_BITS = Fraction(34, 32), Fraction(20, 32)
"""Bytes of a weight in integers that the engine makes, with the scale of 32 weights."""
_HELD_ON_GPU_IN_4_BITS = Fraction(19, 32)
"""Bytes of a weight in a checkpoint's integers on an accelerator, with the scale and zero point of 32 weights."""
_HELD_BLOCKS = {
    "Q4_0": Fraction(20, 32), "Q4_1": Fraction(20, 32), "Q8_0": Fraction(34, 32), "Q4_K": Fraction(148, 256),
    "Q6_K": Fraction(274, 256),
}  # fmt: skip
"""The bytes that the engine holds for one weight on processors, by the block format of a GGUF file.

Formats that are not listed here are converted to 8 bits.
"""


class Weights(msgspec.Struct, frozen=True):
    """The numbers of elements of a model's weights."""

    num_parameters: int
    """The number of all elements."""
    num_in_heads: int = 0
    """The number of elements of the output head and the embedding."""
    formats: Mapping[str, int] = {}
    """The number of elements by the block format that the engine holds them in by default; empty if that is open."""


class Estimate(msgspec.Struct, frozen=True):
    """The memory of one replica in bytes, by purpose."""

    weights: int
    kv_cache: int
    adapters: int
    process: int
    on_gpu: bool
    """True: the memory is an accelerator's; False: the host's."""

    @property
    def num_bytes(self) -> int:
        """The sum of all parts."""
        return self.weights + self.kv_cache + self.adapters + self.process

    def __str__(self) -> str:
        parts = {"weights": self.weights, "KV cache": self.kv_cache, "adapters": self.adapters}
        shown = [f"{name} {gib_text(num_bytes)}" for name, num_bytes in parts.items()]
        return f"{gib_text(self.num_bytes)} ({', '.join(shown)}, the process itself {gib_text(self.process)})"


def estimate(
    weights: Weights, model: ModelConfig, config: EngineConfig, *, gpu_bytes: Sequence[int], has_bf16: bool
) -> Estimate:
    """Return the memory that a replica of a model takes.

    gpu_bytes: the memory of each accelerator of the host, () where the engine computes on processors. has_bf16: whether
    the processors multiply bfloat16. The settings decide the rest as they do in the engine: on an accelerator whose KV
    cache is left open, the engine takes the fraction of it that they say.
    """
    on_gpu = bool(gpu_bytes) and config.device != "cpu"
    weights = weights if model.quantized is None else _dequantized(model)
    item_bytes = _ITEM_BYTES.get(config.dtype) or (2 if on_gpu or has_bf16 else 4)
    if not on_gpu:
        held = _held_bytes(weights, config, item_bytes)
        kv_cache = DEFAULT_KV_CACHE_BYTES if config.kv_cache_bytes is None else config.kv_cache_bytes
        device = DEFAULT_ADAPTER_BYTES if config.adapter_device_bytes is None else config.adapter_device_bytes
        return Estimate(held, kv_cache, device + config.adapter_host_bytes, PROCESS_BYTES, on_gpu=False)
    held = _held_on_gpu(weights, model, config, item_bytes)
    least = (
        2 * config.block_size * token_bytes(model, 1 if config.kv_dtype == "fp8" else item_bytes)
        + held
        + GPU_STEP_BYTES
    )
    shares = sorted(int(each * config.gpu_memory_fraction) for each in gpu_bytes)
    share = next((each for each in shares if each >= least), least)  # of the smallest accelerator that is large enough
    left = share - held - GPU_STEP_BYTES
    adapters = left // 10 if config.adapter_device_bytes is None else config.adapter_device_bytes
    kv_cache = max(left - adapters, 0) if config.kv_cache_bytes is None else config.kv_cache_bytes
    return Estimate(held, kv_cache, adapters, GPU_STEP_BYTES, on_gpu=True)


def _dequantized(model: ModelConfig) -> Weights:
    """Return the elements of a model whose files hold several of them in one number, by its sizes."""
    layers = model.num_layers * sum(inputs * outputs for inputs, outputs in model.projection_shapes().values())
    heads = model.vocab_size * model.hidden_size * (1 if model.tie_word_embeddings else 2)
    keeps = model.quantized is not None and model.quantized.keeps_integers
    return Weights(layers + heads, heads, {"Q4_1": layers, "Q8_0": heads} if keeps else {})


def _held_bytes(weights: Weights, config: EngineConfig, item_bytes: int) -> int:
    """Return the bytes of the weights on processors, in the format that the settings ask for.

    `auto` takes the blocks of a GGUF file, and the 4-bit integers of other files. Whether it takes 8-bit integers in
    place of safetensors is found by the first start: until then the weights count as numbers of the engine's format.
    """
    asked, count = config.quantization, weights.num_parameters
    if asked == "int8":
        return math.ceil(count * _HELD_IN_8_BITS)
    if asked == "int4":
        heads = weights.num_in_heads
        return math.ceil(heads * _HELD_IN_8_BITS + (count - heads) * _HELD_IN_4_BITS)
    if weights.formats and (asked == "gguf" or (asked == "auto" and config.dtype != "float16")):
        return math.ceil(sum(n * _HELD_BLOCKS.get(name, _HELD_IN_8_BITS) for name, n in weights.formats.items()))
    return count * item_bytes


def _held_on_gpu(weights: Weights, model: ModelConfig, config: EngineConfig, item_bytes: int) -> int:
    """Return the bytes of the weights on an accelerator, with a checkpoint's own quantization if it is kept."""
    own = model.quantized.on_gpu if model.quantized is not None and config.quantization != "none" else ""
    if not own:
        return weights.num_parameters * item_bytes
    of_layers = Fraction(1) if own == "fp8" else _HELD_ON_GPU_IN_4_BITS
    heads = weights.num_in_heads
    return math.ceil(heads * item_bytes + (weights.num_parameters - heads) * of_layers)


def token_bytes(model: ModelConfig, item_bytes: int) -> int:
    """Return the bytes of one token's keys and values in all layers that have them."""
    return 2 * len(model.cached_layers) * model.num_kv_heads * model.head_dim * item_bytes


class Needs(msgspec.Struct, frozen=True):
    """The memory, the device and the kind of host that a replica of a revision needs."""

    num_bytes: int
    """Bytes of memory on the accelerator if the replica computes on one, else on the host."""
    device: Device = "auto"
    program: str = ""
    """The driver whose server the host must be able to start; "" for our own engine, which every host can start."""
    labels: Mapping[str, str] = {}
    """The labels that the host must have."""
    excluded: Mapping[str, Sequence[str]] = {}
    """The values that labels of the host must not have, by the labels' names."""
    avoided: Mapping[str, str] = {}
    """Hosts, by id, that could not prepare the model when that was tried last, each with the reason."""
    hopeful: Set[str] = frozenset()
    """The hosts among `avoided` that failed so few times that they may well prepare the model soon."""

    num_threads: int = 0
    """The number of threads of the replica where it computes on processors; 0: as its host's settings say."""

    def covers(self, needs: Needs) -> bool:
        """Tell whether a host with room for a replica with these needs has room for one with the other needs."""
        is_alike = (self.device, self.program) == (needs.device, needs.program)
        has_threads = self.num_threads == needs.num_threads or self.num_threads > needs.num_threads > 0
        return is_alike and has_threads and self.num_bytes >= needs.num_bytes

    def later(self) -> Needs:
        """Return the same needs without the hosts in `hopeful` among `avoided`: as if these had prepared the model."""
        avoided = {host_id: why for host_id, why in self.avoided.items() if host_id not in self.hopeful}
        return msgspec.structs.replace(self, avoided=avoided, hopeful=frozenset())


def host_of_tcp(address: str) -> str:
    """Return the host of a ZeroMQ address on TCP, an IPv6 address without its brackets; "" for another address."""
    return address.removeprefix("tcp://").rpartition(":")[0].strip("[]") if address.startswith("tcp://") else ""


class Node(msgspec.Struct, frozen=True):
    """A machine of a cluster that stands as one host."""

    address: str
    """The address at which the node's engines listen."""
    name: str
    num_processors: int
    """The number of processors that the cluster has on the machine for engines."""
    memory_bytes: int
    """The memory that the cluster has on the machine for engines."""
    num_gpus: int
    labels: Mapping[str, str] = {}


class Host(msgspec.Struct, frozen=True):
    """A machine with an agent."""

    id: str
    name: str
    is_alive: bool
    """True if an agent holds the host's lease; only then is anything started on the host."""
    memory_bytes: int
    gpu_bytes: Sequence[int] = ()
    """The memory of each accelerator, in the order of their indices."""
    away_s: float = 0.0
    """Seconds since the lease of the host's last agent ended; infinite where that agent stopped and left no engine."""
    programs: frozenset[str] = frozenset()
    """The drivers whose servers the host's agent can start."""
    is_drained: bool = False
    """True if replicas leave the host, and none starts on it."""
    labels: Mapping[str, str] = {}
    """The labels that operators gave the host."""
    is_cluster: bool = False
    """True if the host stands for a cluster, in which Ray finds a machine for each replica, or waits for one."""
    nodes: Sequence[Node] = ()
    """The machines of the cluster."""

    def lacks(self, labels: Mapping[str, str]) -> str:
        """Return the first of these labels that the host does not have, as NAME=VALUE; "" where it has all.

        A label that a cluster itself lacks is looked for on its machines.
        """
        if self.is_cluster:
            return ""
        return _lacking_label(self.labels, labels)

    def has_any(self, excluded: Mapping[str, Sequence[str]]) -> str:
        """Return the first of these labels that the host has, as NAME=VALUE; "" where it has none.

        excluded: values by the labels' names.
        """
        return _excluded_label(self.labels, excluded)

    def is_left_by(self, address: str, needs: Needs) -> bool:
        """Tell whether a replica that listens at an address must leave the host because of labels or a drain.

        If the address is none of the known nodes of a cluster, only the host's own labels and drain count: the node may
        come back.
        """
        where = host_of_tcp(address)
        node = next((each for each in self.nodes if each.address == where), None)
        has_wrong = node is not None and (
            _lacking_label(node.labels, needs.labels) or _excluded_label(node.labels, needs.excluded)
        )
        return bool(self.is_drained or self.lacks(needs.labels) or self.has_any(needs.excluded) or has_wrong)

    def takes(self, needs: Needs) -> bool:
        """Tell whether a replica may start on the host, if there is room."""
        return (
            self.is_alive
            and not self.is_drained
            and self.can_start(needs)
            and not self.lacks(needs.labels)
            and not self.has_any(needs.excluded)
            and self.id not in needs.avoided
        )

    def can_start(self, needs: Needs) -> bool:
        """Tell whether the host has the program of a replica."""
        return not needs.program or (needs.program in self.programs and not self.is_cluster)


def _lacking_label(has: Mapping[str, str], labels: Mapping[str, str]) -> str:
    return next((f"{name}={value}" for name, value in labels.items() if has.get(name) != value), "")


def _excluded_label(has: Mapping[str, str], excluded: Mapping[str, Sequence[str]]) -> str:
    return next((f"{name}={has[name]}" for name, values in excluded.items() if has.get(name) in values), "")


class Place(msgspec.Struct, frozen=True):
    """A host and, where a replica computes on one, an accelerator of the host."""

    host_id: str
    gpu: int | None = None
    """The index of the accelerator; None: on processors."""


class StartCheck(msgspec.Struct, frozen=True):
    """The answer to whether a replica could start on a host now, and the reason."""

    host_id: str
    fits: bool
    why: str
    """A clause with the name of the host: the memory that is free there, or what is in the way."""


class FreeMemory:
    """The free memory of each host, from which replicas are subtracted one by one."""

    def __init__(self, hosts: Iterable[Host]) -> None:
        self._hosts = {host.id: host for host in hosts}
        self._free = {host.id: host.memory_bytes for host in self._hosts.values()}
        self._free_gpus = {host.id: list(host.gpu_bytes) for host in self._hosts.values()}
        self._num_replicas = dict.fromkeys(self._hosts, 0)

    @property
    def has_hosts(self) -> bool:
        """True if some host has an agent and is not drained, so that anything can be started at all."""
        return any(host.is_alive and not host.is_drained for host in self._hosts.values())

    def copy(self) -> FreeMemory:
        """Return a copy of the free memory, in which placements can be tried."""
        other = FreeMemory(self._hosts.values())
        other._free = dict(self._free)
        other._num_replicas = dict(self._num_replicas)
        other._free_gpus = {host_id: list(free) for host_id, free in self._free_gpus.items()}
        return other

    def occupy(self, place: Place, needs: Needs) -> None:
        """Subtract the memory of a replica at a place, whether or not that much is free."""
        self._change_free(place, -needs.num_bytes, -GPU_HOST_BYTES, 1)

    def leave(self, place: Place, needs: Needs) -> None:
        """Add the memory of a replica that leaves a place."""
        self._change_free(place, needs.num_bytes, GPU_HOST_BYTES, -1)

    def find(self, needs: Needs) -> Place | None:
        """Return the place with the most free memory that has room for a replica; None where none has room.

        Among equal places, it is that of the host with the fewest replicas. A cluster always has room: it gets
        the replicas that find no other place.
        """
        found = [each for host in self._hosts.values() for each in self._places(host, needs)]
        return max(found, key=lambda each: (each[0], -self._num_replicas[each[1].host_id]))[1] if found else None

    def take(self, needs: Needs) -> Place | None:
        """Occupy the place that `find` finds, and return it."""
        place = self.find(needs)
        if place is not None:
            self.occupy(place, needs)
        return place

    def standings(self, needs: Needs) -> list[StartCheck]:
        """Return for each host whether a replica could start there now, with the reason."""
        return [
            StartCheck(
                host.id,
                bool(self._places(host, needs)),
                self._sum(host, needs) if host.is_alive else f"no agent runs on {host.name}",
            )
            for host in self._hosts.values()
        ]

    def refusal(self, needs: Needs, need: str = "") -> str:
        """Return the sentence that says why no host has room for a replica, with the memory of each host.

        need: the replica's memory in words. For a host on which nothing runs, the sentence gives its whole memory.
        """
        alive = [host for host in self._hosts.values() if host.is_alive]
        sums = [self._sum(host, needs) for host in alive] or ["no host has an agent"]
        return f"A replica needs {need or gib_text(needs.num_bytes)} of memory; {'; '.join(sums)}."

    def _places(self, host: Host, needs: Needs) -> list[tuple[int, Place]]:
        """Return the places of a host that have room for a replica, each with the memory that is free there."""
        free = self._free[host.id]
        if not host.takes(needs):
            return []
        if host.is_cluster:
            return [(-1, Place(host.id))]
        if uses_gpu(needs, host):
            gpus = enumerate(self._free_gpus[host.id] if free >= GPU_HOST_BYTES else ())
            return [(left, Place(host.id, gpu)) for gpu, left in gpus if left >= needs.num_bytes]
        return [(free, Place(host.id))] if needs.device != "cuda" and free >= needs.num_bytes else []

    def _sum(self, host: Host, needs: Needs) -> str:
        if host.is_drained:
            return f"{host.name} is drained"
        if not host.can_start(needs):
            return f"{host.name} has no program of '{needs.program}'"
        if lacking := host.lacks(needs.labels):
            return f"{host.name} has no label {lacking}"
        if excluded := host.has_any(needs.excluded):
            return f"{host.name} has the label {excluded}, which the pool excludes"
        if host.id in needs.avoided:
            return f"{host.name} could not prepare the model: {needs.avoided[host.id].rstrip('.')}"
        free = self._free[host.id]
        if uses_gpu(needs, host):
            pairs = zip(host.gpu_bytes, self._free_gpus[host.id], strict=True)
            gpus = [f"GPU {gpu} has {_share(total, left)}" for gpu, (total, left) in enumerate(pairs)]
            host_has = _share(host.memory_bytes, free)
            own = f", and the host has {host_has}, where a replica takes {gib_text(GPU_HOST_BYTES)}"
            return f"on {host.name} {', '.join(gpus)}{own if free < GPU_HOST_BYTES else ''}"
        if needs.device == "cuda":
            return f"{host.name} has no GPU"
        return f"{host.name} has {_share(host.memory_bytes, free)}"

    def _change_free(self, place: Place, num_bytes: int, host_bytes: int, num_replicas: int) -> None:
        if place.host_id not in self._hosts:
            return
        self._num_replicas[place.host_id] += num_replicas
        gpus = self._free_gpus[place.host_id]
        if place.gpu is None:
            self._free[place.host_id] += num_bytes
            return
        self._free[place.host_id] += host_bytes
        if place.gpu < len(gpus):
            gpus[place.gpu] += num_bytes


def _share(total: int, free: int) -> str:
    """Return a total of memory in words, with the free part of it if some is taken."""
    return (
        f"{gib_text(total)} in all"
        if free >= total
        else f"{gib_text(total)}, of which {gib_text(max(free, 0))} are free"
    )


def uses_gpu(needs: Needs, host: Host) -> bool:
    """Tell whether a replica computes on an accelerator of this host."""
    return bool(host.gpu_bytes) and needs.device != "cpu"


def gib_text(num_bytes: int) -> str:
    """Return a number of bytes in GiB as text."""
    return f"{num_bytes / (1 << 30):.1f} GiB"


def thread_share(asked: int, num_processors: int, num_engines: int) -> int:
    """Return the threads of one of several engines on a host's processors; 0: the engine adapts to the load of others.

    asked: the number in the settings, which counts where it is given.
    num_engines: the number of engines that compute on these processors.
    """
    if asked or num_engines <= 1:
        return asked
    return max(1, num_processors // num_engines)
