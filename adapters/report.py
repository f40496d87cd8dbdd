"""The orders and findings of an inspection: data that `inspection` and `inspector`, its confined half, exchange."""

from __future__ import annotations

import msgspec


class BaseShape(msgspec.Struct, frozen=True):
    """The shape of a base model, which an adapter must fit."""

    targets: dict[str, tuple[int, int]]
    """{projection: (in_features, out_features)}, the same in each of num_layers."""
    num_layers: int
    layers_of: dict[str, tuple[int, ...]] = {}
    """The layers that have a projection, for each projection that not all layers have."""


class Bounds(msgspec.Struct, frozen=True):
    """The largest rank and size with which an adapter is accepted."""

    max_rank: int
    max_bytes: int
    """The most bytes of an adapter's two files together, unpacked."""


class ModuleReport(msgspec.Struct, frozen=True):
    """The findings about one adapted linear."""

    layer: int
    projection: str
    rank: int
    scaling: float
    dtype: str
    """F32, F16 or BF16, as "A/B" where the two differ."""
    norm_a: float
    """The Frobenius norm of lora_A, computed in fp64."""
    norm_b: float
    """The Frobenius norm of lora_B, computed in fp64."""


class Report(msgspec.Struct, frozen=True):
    """The findings about an adapter that fits its base model."""

    digest: str
    rank: int
    """The largest rank of any module."""
    size_bytes: int
    """The bytes of both files."""
    num_modules: int
    num_parameters: int
    modules: list[ModuleReport]
    unadapted: dict[str, list[int]]
    """The layers in which the adapter leaves a projection as it is, by projection; those of experts are left out."""
    ignored: list[str] = []
    """Members of the archive, or files beside the adapter in its folder, that are no part of an adapter."""


class Rejection(msgspec.Struct, frozen=True, tag=True):
    """The reasons of an AdapterRejected, in the form in which they go from one process to another."""

    reasons: list[str]


class Acceptance(msgspec.Struct, frozen=True, tag=True):
    """The finding that an adapter may be used."""

    report: Report


Verdict = Acceptance | Rejection


class Job(msgspec.Struct, frozen=True):
    """The order for an inspection: descriptors of open files, and the base model and bounds to judge by."""

    sources: list[int]
    """One archive, or the two files in the order of FILE_NAMES."""
    targets: list[int]
    """The two empty files that the inspector writes the adapter's files into."""
    ignored: list[str]
    """Names of other files in the folder that the sources are from, which are no part of the adapter."""
    base: BaseShape
    bounds: Bounds
