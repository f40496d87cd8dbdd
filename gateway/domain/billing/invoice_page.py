"""An invoice as a page that a browser shows and prints: one HTML document without scripts or anything to load.

Pure; the template escapes all names and reasons.
"""

from __future__ import annotations

import datetime
from pathlib import Path

import msgspec
from jinja2 import Environment, StrictUndefined

from gateway.domain.billing.invoice import AdjustmentLine, Invoice, Line
from gateway.domain.billing.money import decimal_text

CONTENT_SECURITY_POLICY = (
    "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)

_TEMPLATE = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True).from_string(
    (Path(__file__).parent / "invoice.html").read_text()
)
_KINDS = {"input": "Input", "cached_input": "Cached input", "output": "Output"}


class _LineText(msgspec.Struct, frozen=True):
    model: str
    note: str
    kind: str
    num_tokens: str
    unit_price: str
    amount: str


class _AdjustmentText(msgspec.Struct, frozen=True):
    reason: str
    note: str
    amount: str


def invoice_page(invoice: Invoice) -> str:
    """Return an invoice as an HTML document."""
    first = datetime.datetime.fromtimestamp(invoice.period_start, datetime.UTC)
    last = datetime.datetime.fromtimestamp(invoice.period_end, datetime.UTC) - datetime.timedelta(days=1)
    sums = [("Usage", invoice.usage_nanos)]
    if invoice.adjustments:
        sums.append(("Adjustments", invoice.adjustments_nanos))
    if invoice.credit_nanos:
        sums.append(("Credit", -invoice.credit_nanos))
    sums.append((f"Due, {invoice.currency.upper()}", invoice.due_nanos))
    return _TEMPLATE.render(
        title=f"Invoice {invoice.number or 'draft'} · {invoice.project.name} · {invoice.period}",
        invoice=invoice,
        period=f"{first:%-d} to {last:%-d %B %Y}",
        issued=_date(invoice.issued_at),
        lines=[_line(line) for line in invoice.lines],
        adjustments=[_adjustment(line) for line in invoice.adjustments],
        sums=[(label, _money(amount)) for label, amount in sums],
    )


def _line(line: Line) -> _LineText:
    notes = [f"{line.service_tier} tier"] if line.service_tier != "default" else []
    if line.adapter_class not in ("none", "default"):
        notes.append(f"adapter class {line.adapter_class}")
    if line.discount_basis_points:
        notes.append(f"less {line.discount_basis_points / 100:g}%")
    if line.corrects_period:
        notes.append(f"correction of {line.corrects_period}")
    return _LineText(
        line.model,
        ", ".join(notes),
        _KINDS[line.kind],
        f"{line.num_tokens:,}".replace("-", "−"),
        _money(line.unit_price_nanos),
        _money(line.amount_nanos),
    )


def _adjustment(line: AdjustmentLine) -> _AdjustmentText:
    notes = [f"corrects {what}" for what in (line.corrects_period, line.corrects_request_id) if what]
    return _AdjustmentText(line.reason, ", ".join(notes), _money(line.amount_nanos))


def _money(nanos: int) -> str:
    """Return an amount of money as exact text, with separated thousands and a true minus sign."""
    whole, _, fraction = decimal_text(nanos).partition(".")
    return f"{int(whole.lstrip('-')):,}.{fraction}" if nanos >= 0 else f"−{int(whole.lstrip('-')):,}.{fraction}"


def _date(unix_s: int | None) -> str:
    if unix_s is None:
        return "not yet"
    return f"{datetime.datetime.fromtimestamp(unix_s, datetime.UTC):%-d %B %Y}"
