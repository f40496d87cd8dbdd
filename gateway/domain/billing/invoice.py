"""An invoice: the usage of one tenant in one period, line by line, to the nano. Pure; its JSON is stored and shown.

A line is one kind of tokens of one model at one price; the lines' amounts are the ledger's own sums, so that nothing is
rounded a second time.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Literal

import msgspec

from gateway.domain.billing.book import Version
from gateway.domain.billing.pricing import Rates

LineKind = Literal["input", "cached_input", "output"]


class PeriodSum(msgspec.Struct, frozen=True):
    """The usage and cost of one project in one period at one price, summed over the ledger."""

    model: str
    adapter_class: str
    """The price class of the adapters."""
    service_tier: str
    price_version: int
    corrects_period: str | None
    """The month that late usage belongs to, such as "2026-10"; None for the period's own usage."""
    num_requests: int
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    input_cost_nanos: int
    cached_cost_nanos: int
    output_cost_nanos: int


class Line(msgspec.Struct, frozen=True):
    """The tokens of one kind on an invoice."""

    model: str
    adapter_class: str
    """The price class of the adapters."""
    service_tier: str
    kind: LineKind
    num_tokens: int
    unit_price_nanos: int
    """The price of a million tokens before the discount, in billionths of the currency."""
    discount_basis_points: int
    """The discount, in hundredths of a per cent."""
    price_version: int | None
    """The version of the prices; null where there were none."""
    corrects_period: str | None
    """The closed month whose usage came late."""
    amount_nanos: int
    """The amount after the discount, in billionths of the currency."""


class AdjustmentLine(msgspec.Struct, frozen=True):
    """An adjustment that an invoice carries: a sum for usage of an earlier period."""

    id: str
    reason: str
    corrects_period: str | None
    corrects_request_id: str | None
    amount_nanos: int
    """The amount in billionths of the currency; negative for a refund."""


class Party(msgspec.Struct, frozen=True):
    """The tenant or the organization that an invoice is made out to."""

    id: str
    name: str


class Invoice(msgspec.Struct, frozen=True, kw_only=True):
    """The invoice of a project for a month. total = usage + adjustments; due = total - credit."""

    number: str | None
    """The invoice's number; null for a draft, whose amounts may still change."""
    period: str
    """The month, such as `2026-10`."""
    period_start: int
    """Unix seconds."""
    period_end: int
    """Unix seconds."""
    issued_at: int | None
    """Unix seconds; null for a draft."""
    organization: Party
    project: Party
    currency: str
    num_requests: int
    lines: Sequence[Line]
    adjustments: Sequence[AdjustmentLine]
    usage_nanos: int
    adjustments_nanos: int
    total_nanos: int
    credit_nanos: int
    """The credit that pays for a part of the total, in billionths of the currency."""
    due_nanos: int
    """The amount that is left to be paid, in billionths of the currency."""
    object: Literal["organization.invoice"] = "organization.invoice"


def lines_of(sums: Iterable[PeriodSum], book: Mapping[int, Version], project_id: str) -> list[Line]:
    """Return one line for each kind of tokens that was used, in the order of the sums. book: versions by number."""
    lines = []
    for each in sums:
        version = book.get(each.price_version)
        rates = Rates()
        if version is not None:
            rates = version.rates(project_id, each.model, each.adapter_class, each.service_tier)
        uncached = each.prompt_tokens - each.cached_tokens
        kinds: tuple[tuple[LineKind, int, int, int], ...] = (
            ("input", uncached, rates.input_nanos, each.input_cost_nanos),
            ("cached_input", each.cached_tokens, rates.cached_input_nanos, each.cached_cost_nanos),
            ("output", each.completion_tokens, rates.output_nanos, each.output_cost_nanos),
        )
        lines += [
            Line(
                each.model,
                each.adapter_class,
                each.service_tier,
                kind,
                num_tokens,
                unit_price,
                rates.basis_points,
                each.price_version or None,
                each.corrects_period,
                amount,
            )
            for kind, num_tokens, unit_price, amount in kinds
            if num_tokens or amount
        ]
    return lines
