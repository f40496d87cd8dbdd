"""An invoice's page shows its numbers exactly, runs nothing, loads nothing and prints on paper."""

from __future__ import annotations

import re
from html.parser import HTMLParser

from gateway.domain.billing.invoice import AdjustmentLine, Invoice, Line, Party
from gateway.domain.billing.invoice_page import CONTENT_SECURITY_POLICY, invoice_page

HOSTILE = "<script>alert(1)</script>\"' onload=x & {{ 7*7 }}"


def invoice(name: str = "acme") -> Invoice:
    lines = [
        Line("tiny", "none", "default", "input", 1_234_567, 150_000_000, 0, 1, None, 185_185_050),
        Line("tiny:pirate", "big", "flex", "output", -3, 600_000_000, 1250, 2, "2026-09", -1575),
    ]
    adjustments = [AdjustmentLine("adj_1", name, "2026-09", None, -20_000_000_000)]
    return Invoice(
        number="2026-10-0001",
        period="2026-10",
        period_start=1790812800,
        period_end=1793491200,
        issued_at=1793600000,
        organization=Party("org_x", name),
        project=Party("proj_x", name),
        currency="eur",
        num_requests=2,
        lines=lines,
        adjustments=adjustments,
        usage_nanos=185_183_475,
        adjustments_nanos=-20_000_000_000,
        total_nanos=-19_814_816_525,
        credit_nanos=1,
        due_nanos=-19_814_816_526,
    )


class ParsedPage(HTMLParser):
    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[str] = []
        self.cells: list[str] = []
        self._numeric = False
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [name for name, _ in attrs]
        self._numeric = tag == "td" and ("class", "number") in attrs

    def handle_data(self, data: str) -> None:
        if self._numeric:
            self.cells.append(data)
            self._numeric = False


def test_every_amount_is_there_to_the_nano() -> None:
    page = invoice_page(invoice())
    assert ParsedPage(page).cells == [
        "1,234,567",
        "0.15",
        "0.18518505",
        "−3",
        "0.60",
        "−0.000001575",
        "−20.00",
        "0.185183475",
        "−20.00",
        "−0.000000001",
        "−19.814816526",
    ]
    for text in (
        "2026-10-0001",
        "1 to 31 October 2026",
        "Due, EUR",
        "less 12.5%",
        "correction of 2026-09",
        "flex tier",
    ):
        assert text in page


def test_names_with_markup_are_shown_as_text() -> None:
    page = invoice_page(invoice(HOSTILE))
    parsed = ParsedPage(page)
    assert "script" not in parsed.tags
    assert set(parsed.attributes) <= {"lang", "charset", "name", "content", "class", "scope"}
    assert page.count("&lt;script&gt;") == 4  # the title, both parties and the adjustment
    assert "49" not in re.sub(r"<style>.*?</style>", "", page, flags=re.DOTALL)


def test_the_page_loads_nothing_and_has_styles_for_print() -> None:
    page = invoice_page(invoice())
    assert not re.search(r"https?:|url\(|src=|href=|@import", page)
    assert "@media print" in page and "tabular-nums" in page
    assert CONTENT_SECURITY_POLICY.startswith("default-src 'none'")
