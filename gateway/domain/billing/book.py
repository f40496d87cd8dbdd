"""The price book: versions that never change, each complete, and the choice of the price for a request. Pure.

`price_of` in the schema prices a row by the same rule as `rates` here; limits ask `highest_price_of` for an upper bound
before a request runs.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from operator import attrgetter

import msgspec

from gateway.domain.billing.pricing import WHOLE_BASIS_POINTS, Rates
from gateway.domain.limits.work import Price

ANY = "*"
NO_ADAPTER = "none"
SHADOW_TIER = "shadow"
"""The tier of copies of requests, whose replies no client gets. A request cannot ask for it."""

BATCH_TIER = "batch"
DEFAULT_TIER = "default"

TIERS = ("default", "flex", "priority", "batch", SHADOW_TIER)
"""The service tiers that a request can be billed as."""

DEFAULT_CLASS = "default"


class Entry(msgspec.Struct, frozen=True):
    """The prices of one kind of request, in nanos per million tokens."""

    model: str
    """The id of a model, the id of a base model, or `*` for any."""
    adapter_class: str
    """The class of the adapter; "none" for the base itself."""
    service_tier: str
    """The service tier, of which "batch" is one."""
    input_nanos: int
    cached_input_nanos: int
    output_nanos: int

    @property
    def identity(self) -> tuple[str, str, str]:
        """The parts that no other entry of the version may share."""
        return self.model, self.adapter_class, self.service_tier


class Version(msgspec.Struct, frozen=True):
    """The complete prices from one instant until the next version begins."""

    version: int
    currency: str
    effective_ns: int
    """The instant from which the version is in force, in Unix nanoseconds."""
    entries: tuple[Entry, ...]
    discounts: Mapping[str, int]
    """Discounts in basis points by project."""

    def rates(self, project_id: str, model: str, adapter_class: str, service_tier: str) -> Rates:
        """Return the rates of the most specific matching entry; zero where no entry matches.

        If no entry is for batches, a request of a batch costs half of what it costs otherwise. The most specific
        entry names the model itself; next is one that names its base, then one that names the adapter class, then one
        that names the service tier.
        """
        if service_tier == BATCH_TIER and not any(
            entry.service_tier == BATCH_TIER
            and entry.model in (model, model.partition(":")[0], ANY)
            and entry.adapter_class in (adapter_class, ANY)
            for entry in self.entries
        ):
            usual = self.rates(project_id, model, adapter_class, DEFAULT_TIER)
            halves = (usual.input_nanos // 2, usual.cached_input_nanos // 2, usual.output_nanos // 2)
            return Rates(*halves, usual.basis_points)
        discount = self.discounts.get(project_id, 0)
        base = model.partition(":")[0]
        matching = [
            entry
            for entry in self.entries
            if entry.model in (model, base, ANY)
            and entry.adapter_class in (adapter_class, ANY)
            and entry.service_tier in ((service_tier,) if service_tier == BATCH_TIER else (service_tier, ANY))
        ]
        if not matching:
            return Rates(basis_points=discount)
        best = max(matching, key=lambda entry: _specificity(entry, model))
        return Rates(best.input_nanos, best.cached_input_nanos, best.output_nanos, discount)

    def adapter_classes(self, model: str) -> set[str]:
        """Return the adapter classes as which a request of this model may be billed.

        An adapter's class may change while the request runs.
        """
        if ":" not in model:
            return {NO_ADAPTER}
        return {entry.adapter_class for entry in self.entries} - {NO_ADAPTER, ANY} | {DEFAULT_CLASS}


Book = Sequence[Version]
"""The versions of an organization's prices, in the order of their times."""


def in_force(book: Book, from_ns: int, until_ns: int) -> Sequence[Version]:
    """Return the versions that are in force at some time from one instant to the other.

    from_ns, until_ns: the instants in Unix nanoseconds.
    """
    by_time = attrgetter("effective_ns")
    first = max(0, bisect_right(book, from_ns, key=by_time) - 1)
    return book[first : bisect_right(book, until_ns, key=by_time)]


def highest_price_of(versions: Iterable[Version], project_id: str, model: str, service_tier: str) -> Price:
    """Return the highest price of tokens of this model in any of these versions."""
    rates = [
        version.rates(project_id, model, adapter_class, service_tier)
        for version in versions
        for adapter_class in version.adapter_classes(model)
    ]
    return Price(
        max((each.input_nanos * (WHOLE_BASIS_POINTS - each.basis_points) for each in rates), default=0),
        max((each.output_nanos * (WHOLE_BASIS_POINTS - each.basis_points) for each in rates), default=0),
    )


def _specificity(entry: Entry, model: str) -> tuple[bool, bool, bool, bool]:
    return entry.model == model, entry.model != ANY, entry.adapter_class != ANY, entry.service_tier != ANY
