"""Requests for exports, and the combinations of kinds and formats that exist. Pure; knows no database and no HTTP."""

from __future__ import annotations

import calendar
import datetime
import re
from collections.abc import Mapping
from typing import Literal, get_args

import msgspec

Kind = Literal["usage", "costs", "invoice"]
Format = Literal["csv", "jsonl", "parquet", "focus", "stripe", "cloudevents"]

KINDS: tuple[Kind, ...] = get_args(Kind)
FORMATS_OF: Mapping[Kind, tuple[Format, ...]] = {
    "usage": ("csv", "jsonl", "parquet", "stripe", "cloudevents"),
    "costs": ("csv", "jsonl", "parquet", "focus"),
    "invoice": ("csv", "jsonl", "parquet"),
}
"""The formats of each kind: FOCUS is about charges, meter events and CloudEvents are about single events."""

SUFFIX_OF: Mapping[Format, str] = {
    "csv": "csv",
    "jsonl": "jsonl",
    "parquet": "parquet",
    "focus": "focus.csv",
    "stripe": "stripe.jsonl",
    "cloudevents": "cloudevents.jsonl",
}

_PERIOD = re.compile(r"(\d{4})-(\d{2})(?:-(\d{2}))?")


class WrongExport(ValueError):
    """The error for a requested export that does not exist.

    field: the wrong field.
    """

    def __init__(self, field: str, reason: str) -> None:
        super().__init__(f"{field}: {reason}")
        self.field = field
        self.reason = reason


class NoSuchPeriod(WrongExport):
    """The error for a period before the first one of the organization, or after the present one."""

    def __init__(self, text: str, first: datetime.date, last: datetime.date) -> None:
        super().__init__("period", f"there is no {text} in the books, which have {first:%Y-%m} to {last:%Y-%m}")


class Span(msgspec.Struct, frozen=True):
    """A billing period, or one day of it: [start, end) in UTC."""

    text: str
    """The span in the form in which it was asked for, such as 2026-10 or 2026-10-05."""
    period: str
    """The month that the span is, or in which it lies, such as 2026-10."""
    start: datetime.datetime
    end: datetime.datetime

    @property
    def is_day(self) -> bool:
        """True for one day, False for a whole billing period."""
        return self.text != self.period


class ExportRequest(msgspec.Struct, frozen=True):
    """A request for an export."""

    organization_id: str
    kind: Kind
    format: Format
    span: Span
    project_id: str | None = None
    """The only project; None for the whole organization."""

    @property
    def stem(self) -> str:
        """The name of the export's files without their endings, which depends on the request alone."""
        of_project = f"-{self.project_id}" if self.project_id else ""
        return f"{self.kind}-{self.span.text}{of_project}"

    @property
    def file_name(self) -> str:
        """The name of the file, with the ending of its format."""
        return f"{self.stem}.{SUFFIX_OF[self.format]}"

    @property
    def manifest_name(self) -> str:
        """The name of the manifest, which is that of the file with an ending of its own."""
        return f"{self.file_name}.manifest.json"


def make_request(
    organization_id: str, kind: str, format: str, period: str, project_id: str | None = None
) -> ExportRequest:
    """Return the request for an export.

    project_id: None: all projects of the organization.

    Raises WrongExport: when a field is wrong; the error names the field.
    """
    if kind not in KINDS:
        raise WrongExport("kind", f"expected one of {', '.join(KINDS)}")
    formats = FORMATS_OF[kind]
    if format not in formats:
        raise WrongExport("format", f"expected one of {', '.join(formats)} for {kind}")
    span = parse_span(period)
    if kind == "invoice" and span.is_day:
        raise WrongExport("period", "an invoice covers a whole month, such as 2026-10")
    return ExportRequest(organization_id, kind, format, span, project_id)


def parse_span(text: str) -> Span:
    """Parse a month `2026-10` or a day `2026-10-05`.

    Raises WrongExport: when the text is neither.
    """
    match = _PERIOD.fullmatch(text)
    try:
        if match is None or not text.isascii():
            raise ValueError
        year, month, day = int(match[1]), int(match[2]), match[3]
        start = datetime.datetime(year, month, int(day or 1), tzinfo=datetime.UTC)
        length = 1 if day else calendar.monthrange(year, month)[1]
        return Span(text, text[:7], start, start + datetime.timedelta(days=length))
    except (ValueError, OverflowError):
        raise WrongExport("period", "expected a month such as 2026-10, or a day such as 2026-10-05") from None
