"""The judge of a stranger's files, in the confined process that `inspection` starts: from open files to a verdict.

Everything is copied first and read from the copy, which nobody else can change. Each weight is read once: for the
digest, for NaN and infinity, and for the norms. Imports as little as it can: that is most of an inspection's time.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from typing import BinaryIO

import msgspec

from adapters.archive.output import Output
from adapters.archive.unpack import unpack
from adapters.digest import ContentDigest
from adapters.errors import AdapterRejected
from adapters.patterns.module_names import is_of_expert
from adapters.peft_format import FILE_NAMES, AdapterFile, check_finite, check_fit, check_rank, describe
from adapters.report import Acceptance, BaseShape, Bounds, Job, ModuleReport, Rejection, Report, Verdict
from adapters.safetensors_header import TensorInfo, iter_tensor_bytes
from adapters.values import sum_of_squares


def work(argument: bytes) -> bytes:
    """Inspect the files of a Job, given in JSON, and return the Verdict in MessagePack."""
    job = msgspec.json.decode(argument, type=Job)
    verdict: Verdict
    try:
        verdict = Acceptance(_inspect(job))
    except AdapterRejected as refusal:
        verdict = Rejection(refusal.reasons)
    return msgspec.msgpack.encode(verdict)


def _inspect(job: Job) -> Report:
    with ExitStack() as stack:
        sources = [stack.enter_context(os.fdopen(number, "rb")) for number in job.sources]
        targets = [stack.enter_context(os.fdopen(number, "r+b")) for number in job.targets]
        ignored = job.ignored + _copy(sources, targets, job.bounds.max_bytes)
        for target in targets:
            target.flush()
        config, weights = targets
        report = judge(config, weights, job.base, job.bounds)
    return msgspec.structs.replace(report, ignored=ignored)


def _copy(sources: Sequence[BinaryIO], targets: Sequence[BinaryIO], max_bytes: int) -> list[str]:
    """Copy the adapter's two files, or unpack their archive, into the targets; return what else the archive holds.

    max_bytes: the most bytes of both files together.
    """
    named = dict(zip(FILE_NAMES, targets, strict=True))
    if len(sources) == 1:
        return unpack(sources[0], named, max_bytes)
    output = Output(named, max_bytes)
    for name, source in zip(FILE_NAMES, sources, strict=True):
        output.copy(source, name, name, os.fstat(source.fileno()).st_size)
    return []


def judge(config: BinaryIO, weights: BinaryIO, base: BaseShape, bounds: Bounds) -> Report:
    """Return the report of an adapter.

    Raises AdapterRejected: when the adapter is refused; the error has all mismatches of the first stage that finds any:
    the stages of `peft_format.read_adapter`, then the fit to the base model and the bounds, then the values.
    """
    adapter = describe(config, weights)
    _check_fit(adapter, base, bounds)
    digest = ContentDigest()
    norms: dict[str, float] = {}
    for module in adapter.modules:
        digest.begin(module)
        for tensor in (module.a, module.b):
            norms[tensor.name] = _norm_of(weights, tensor, digest)
    check_finite(norms)
    _check_effect(adapter, norms)
    num_elements = sum(math.prod(tensor.shape) for module in adapter.modules for tensor in (module.a, module.b))
    return Report(
        digest=digest.hexdigest(),
        rank=adapter.rank_max,
        size_bytes=sum(os.fstat(file.fileno()).st_size for file in (config, weights)),
        num_modules=len(adapter.modules),
        num_parameters=num_elements,
        modules=list(_module_reports(adapter, norms)),
        unadapted=_layers_without(adapter, base),
    )


def _norm_of(weights: BinaryIO, tensor: TensorInfo, digest: ContentDigest) -> float:
    """Return the tensor's Frobenius norm, and add all of its bytes to the digest."""
    total = 0.0
    for chunk in iter_tensor_bytes(weights, tensor):
        digest.update(chunk)
        total += sum_of_squares(chunk, tensor.dtype)
    return math.sqrt(total)


def _check_fit(adapter: AdapterFile, base: BaseShape, bounds: Bounds) -> None:
    reasons: list[str] = []
    try:
        check_fit(adapter, base.targets, base.num_layers, base.layers_of)
    except AdapterRejected as refusal:
        reasons += refusal.reasons
    try:
        check_rank(adapter, bounds.max_rank)
    except AdapterRejected as refusal:
        reasons += refusal.reasons
    for module in adapter.modules:
        if not module.scaling > 0:
            where = f"layer {module.layer} {module.projection}"
            reasons.append(
                f"{where}: lora_alpha or alpha_pattern scales it by {module.scaling:g}; it must be above zero"
            )
    if reasons:
        raise AdapterRejected(reasons)


def _check_effect(adapter: AdapterFile, norms: dict[str, float]) -> None:
    """Check that an adapter changes something.

    Raises AdapterRejected: when the model would answer as if there were no adapter.
    """
    if any(norms[module.a.name] and norms[module.b.name] for module in adapter.modules):
        return
    sides = {"A": [module.a for module in adapter.modules], "B": [module.b for module in adapter.modules]}
    zero = [f"lora_{side}" for side, tensors in sides.items() if not any(norms[tensor.name] for tensor in tensors)]
    what = f"every {' and '.join(zero)}" if zero else "lora_A or lora_B of every module"
    raise AdapterRejected([f"{what} is zero: it changes nothing"])


def _module_reports(adapter: AdapterFile, norms: dict[str, float]) -> Iterable[ModuleReport]:
    for module in adapter.modules:
        dtypes = dict.fromkeys((module.a.dtype, module.b.dtype))
        yield ModuleReport(
            layer=module.layer,
            projection=module.projection,
            rank=module.rank,
            scaling=module.scaling,
            dtype="/".join(dtypes),
            norm_a=norms[module.a.name],
            norm_b=norms[module.b.name],
        )


def _layers_without(adapter: AdapterFile, base: BaseShape) -> dict[str, list[int]]:
    adapted = {(module.layer, module.projection) for module in adapter.modules}
    layers = {
        projection: [
            layer
            for layer in base.layers_of.get(projection, range(base.num_layers))
            if (layer, projection) not in adapted
        ]
        for projection in base.targets
        if not is_of_expert(projection)  # which have several names
    }
    return {projection: left for projection, left in layers.items() if left}
