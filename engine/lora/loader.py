"""Loads adapters from files to memory: read once, checked once, kept in the host tier for the next time.

The bytes that are checked are the very bytes that are loaded: they must have the digest by which they were asked for,
fit the base model, and be numbers in the engine's dtype.

The host tier holds validated adapters in the engine's dtype, laid out as the device takes them; the least recently used
leave when its bytes run out. A load that finds its adapter there reads no file and checks nothing again. On a CPU a
slot of the pool refers to the same memory; for a GPU the tier is pinned, and copied from (`engine.cuda.copies`).

All of it belongs to the one thread that `loading_executor` makes. Knows nothing of slots or requests.
"""

from __future__ import annotations

import contextlib
import math
import os
import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from adapters.digest import ContentDigest
from adapters.errors import AdapterDamaged, AdapterMissing, AdapterRejected
from adapters.peft_config import MAX_RANK
from adapters.peft_format import WEIGHTS_NAME, AdapterFile, AdapterModule, check_fit, check_rank, read_description
from adapters.ref import digest_of
from adapters.safetensors_header import TensorInfo
from adapters.store import AdapterStore
from engine.config import ModelConfig
from engine.config.model import ExpertModule
from engine.lora.layer import AdapterLayout, GroupKey, GroupWeights, LoadedAdapter, ModuleKey, groups_of, shapes_of
from engine.lora.layout import expert_outputs, outputs_of

_Ranks = frozenset[tuple[tuple[int, str], int]]
LOADING_NICENESS = 4
_DTYPES = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}


def loading_executor() -> ThreadPoolExecutor:
    """Return an executor of one thread that steps aside for the stepping thread.

    It has one thread of PyTorch's, and a low priority.
    """
    num_threads = torch.get_num_threads()
    executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix="adapter-load", initializer=_step_aside)
    executor.submit(lambda: None).result()
    torch.set_num_threads(num_threads)  # threads yet to come take the number that was set last, by whichever thread
    return executor


def _step_aside() -> None:
    torch.get_num_threads()  # a thread takes the common number when first asked, over one set before
    torch.set_num_threads(1)
    with contextlib.suppress(OSError):  # on Linux a thread has a priority of its own
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), LOADING_NICENESS)


class HostTier:
    """Adapters by content key within max_bytes; the most recently used ones stay longest.

    A larger adapter is not kept at all. pinned: True: its memory is pinned; then an adapter takes the power of two at
    or above its bytes, in which PyTorch pins memory. Belongs to the loading thread, but for its two counters, which any
    thread may read.
    """

    def __init__(self, max_bytes: int, *, pinned: bool = False) -> None:
        self._max_bytes = max_bytes
        self._pinned = pinned
        self._kept: OrderedDict[str, LoadedAdapter] = OrderedDict()
        self.num_bytes = 0
        self.num_hits = 0

    def get(self, key: str) -> LoadedAdapter | None:
        """Return an adapter by its content key, and count a hit; None where the adapter is not kept."""
        adapter = self._kept.get(key)
        if adapter is not None:
            self._kept.move_to_end(key)
            self.num_hits += 1
        return adapter

    def put(self, adapter: LoadedAdapter) -> None:
        """Add an adapter, unless it is larger than max_bytes, and drop the least recently used ones until all fit."""
        if adapter.key in self._kept or self._taken_bytes(adapter) > self._max_bytes:
            return
        self._kept[adapter.key] = adapter
        self.num_bytes += self._taken_bytes(adapter)
        while self.num_bytes > self._max_bytes:
            self.num_bytes -= self._taken_bytes(self._kept.popitem(last=False)[1])

    def _taken_bytes(self, adapter: LoadedAdapter) -> int:
        return 1 << max(adapter.num_bytes - 1, 0).bit_length() if self._pinned else adapter.num_bytes


class AdapterLoader:
    """Reads adapters for one base model.

    expect: called with the layout of every adapter that is about to be used.
    pin: True: a GPU copies from the host tier.
    keeps_bfloat16: True: adapters whose files are in bfloat16 stay in it.
    max_rank: larger adapters are refused.
    """

    def __init__(
        self,
        store: AdapterStore,
        config: ModelConfig,
        dtype: torch.dtype,
        *,
        host: HostTier,
        expect: Callable[[AdapterLayout], None] = lambda layout: None,
        pin: bool = False,
        keeps_bfloat16: bool = False,
        max_rank: int = MAX_RANK,
    ) -> None:
        self._store = store
        self._config = config
        self._targets = config.adapter_targets()
        self._shapes = shapes_of(config)
        self._expert_modules = config.expert_modules()
        self._num_experts = 0 if config.experts is None else config.experts.number
        self._groups = groups_of(config)
        self._num_layers = config.num_layers
        self._layers_of = config.layers_of_targets()
        self._dtype = dtype
        self._expect = expect
        self._pin = pin
        self._keeps_bfloat16 = keeps_bfloat16
        self._max_rank = max_rank
        self._host = host
        self._layouts: weakref.WeakValueDictionary[_Ranks, AdapterLayout] = weakref.WeakValueDictionary()

    def load(self, key: str) -> LoadedAdapter:
        """Return the adapter of a content key in host memory.

        Raises AdapterRejected: when the adapter does not fit the base model.
        Raises StoreFailure: when the store does not give the adapter.
        """
        adapter = self._host.get(key)
        if adapter is None:
            adapter = self._read(key)
            self._host.put(adapter)
        self._expect(adapter.layout)
        return adapter

    def _read(self, key: str) -> LoadedAdapter:
        digest = _digest_of(key)
        with self._store.reading(digest) as folder:
            try:
                file = read_description(folder)
            except AdapterRejected as refusal:  # nothing is stored that this would refuse
                raise AdapterDamaged(digest, f"can't be read: {'; '.join(refusal.reasons)}") from None
            check_fit(file, self._targets, self._num_layers, self._layers_of)
            check_rank(file, self._max_rank)
            content = _read_file(folder / WEIGHTS_NAME)
            if _content_digest(file, content.data) != digest:
                raise AdapterDamaged(digest, "differs from the content that was stored under its digest")
        return self._lay_out(key, file, content)

    def _lay_out(self, key: str, file: AdapterFile, content: NDArray[np.uint8]) -> LoadedAdapter:
        parts = self._parts_of(file)
        layout = self._layout(parts)
        weights = torch.empty(layout.num_elements, dtype=self._dtype_of(file), pin_memory=self._pin)
        groups = layout.groups_of(weights)
        adapter = LoadedAdapter(key, _scalings(parts, groups), weights.nbytes, layout, weights, groups)
        self._fill(adapter, parts, content)
        return adapter

    def _dtype_of(self, file: AdapterFile) -> torch.dtype:
        """Return the dtype in which an adapter is stored in memory: bfloat16 only where that changes no number."""
        kinds = {_DTYPES[tensor.dtype] for module in file.modules for tensor in (module.a, module.b)}
        return torch.bfloat16 if self._keeps_bfloat16 and kinds == {torch.bfloat16} else self._dtype

    def _parts_of(self, file: AdapterFile) -> dict[ModuleKey, list[_Part]]:
        """Return the modules of a file by layer and projection.

        The projections of a fused one have the same A. Projections of experts have a part for each expert that is
        adapted, or one of all.
        """
        parts: dict[ModuleKey, list[_Part]] = {}
        for module in file.modules:
            of_expert = self._expert_modules.get(module.projection)
            if of_expert is not None:
                for projection in of_expert.projections:
                    outputs = expert_outputs(projection, of_expert, self._config)
                    parts.setdefault((module.layer, projection), []).append(_Part(module, outputs, of_expert))
                continue
            first = 0
            for projection in self._config.parts_of(module.projection):
                outputs = slice(first, first + self._shapes[projection][1])
                parts[module.layer, projection] = [_Part(module, outputs)]
                first = outputs.stop
        return parts

    def _layout(self, parts: Mapping[ModuleKey, Sequence[_Part]]) -> AdapterLayout:
        """Return the layout of an adapter: one object for equal ranks, so that equal adapters run together.

        All experts of a layer have the largest rank of any, with zeros where they have less.
        """
        ranks = {key: max(part.module.rank for part in of_key) for key, of_key in parts.items()}
        key = frozenset(ranks.items())
        layout = self._layouts.get(key)
        if layout is None:
            layout = self._layouts[key] = AdapterLayout(ranks, self._shapes, self._groups, self._num_experts)
        return layout

    def _fill(
        self, adapter: LoadedAdapter, parts: Mapping[ModuleKey, Sequence[_Part]], content: NDArray[np.uint8]
    ) -> None:
        """Copy a file's weights into an adapter, in few calls.

        At each call the stepping thread may have to wait for the interpreter.

        Raises AdapterRejected: when a weight is NaN, infinite or too large for the engine's dtype.
        """
        targets, sources, places = [], [], []
        for (layer, group), weights in adapter.groups.items():
            shrinks = torch.split(weights.a, [b.shape[-2] for b in weights.bs], -2)
            for p, a, b, scaling in zip(
                weights.projections, shrinks, weights.bs, adapter.scalings[layer, group], strict=True
            ):
                for part in parts[layer, group[p]]:
                    inputs, outputs = _tensor(part.module.a, content), _tensor(part.module.b, content)[part.outputs]
                    if part.of_expert is None:
                        targets += [a, b.T]
                        sources += [inputs, outputs_of(group[p], outputs, self._config)]
                    else:
                        of_a, of_b = part.of_experts(a, b)
                        targets += [of_a, of_b]
                        sources += part.by_expert(inputs, outputs, scaling)
                    places += [f"layer {layer} {group[p]}"] * 2
        if any(part.of_expert is not None for of_key in parts.values() for part in of_key):
            adapter.weights.zero_()  # what some experts lack
        torch._foreach_copy_(targets, sources)
        # After the conversion: what overflows the engine's dtype would reach every row that uses it.
        if not math.isfinite(float(adapter.weights.sum(dtype=torch.float32))):
            for where, target in zip(places, targets, strict=True):
                if not target.isfinite().all():
                    dtype = str(adapter.weights.dtype).removeprefix("torch.")
                    raise AdapterRejected([f"{where}: a weight is NaN, infinite or too large for {dtype}"])


def _digest_of(key: str) -> str:
    try:
        return digest_of(key)
    except ValueError:
        raise AdapterMissing(key) from None


def _read_file(path: Path) -> NDArray[np.uint8]:
    content = np.empty(path.stat().st_size, dtype=np.uint8)
    with path.open("rb") as file:
        file.readinto(content.data)  # leaves the interpreter to others meanwhile
    return content


def _content_digest(file: AdapterFile, content: memoryview) -> str:
    digest = ContentDigest()
    for module in file.modules:
        digest.begin(module)
        for tensor in (module.a, module.b):
            digest.update(content[tensor.start : tensor.end])  # leaves the interpreter to others, too
    return digest.hexdigest()


def _tensor(info: TensorInfo, content: NDArray[np.uint8]) -> Tensor:
    """Return a view of the file's content."""
    dtype = _DTYPES[info.dtype]
    count = (info.end - info.start) // dtype.itemsize
    return torch.frombuffer(content, dtype=dtype, count=count, offset=info.start).view(info.shape)


class _Part(NamedTuple):
    """One projection's part of a module: some of the module's outputs and, if it is of experts, the expert's number."""

    module: AdapterModule
    outputs: slice
    """The outputs of the module that belong to the projection."""
    of_expert: ExpertModule | None = None
    """The expert; None for a module of a linear."""

    def of_experts(self, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
        """Return the places of the part's matrices in A's [E, r, in] and B's [E, r, out] of all experts."""
        assert self.of_expert is not None
        rank, expert = self.module.rank, self.of_expert.expert
        which = slice(None) if expert is None else slice(expert, expert + 1)
        return a[which, :rank], b[which, :rank]

    def by_expert(self, a: Tensor, b: Tensor, scaling: float) -> list[Tensor]:
        """Return A [E * r, in] and B [out, r * E] of a file as [E, r, in] and [E, r, out] (`adapters.peft_format`).

        scaling: the scaling of all experts together; B is multiplied if this module has another.
        """
        rank = self.module.rank
        a, b = a.reshape(-1, rank, a.shape[1]), b.reshape(b.shape[0], rank, -1).permute(2, 1, 0)
        return [a, b if self.module.scaling == scaling else b.float() * (self.module.scaling / scaling)]


def _scalings(
    parts: Mapping[ModuleKey, Sequence[_Part]], groups: Mapping[GroupKey, GroupWeights]
) -> dict[GroupKey, tuple[float, ...]]:
    return {
        (layer, group): tuple(parts[layer, group[p]][0].module.scaling for p in of_group.projections)
        for (layer, group), of_group in groups.items()
    }
