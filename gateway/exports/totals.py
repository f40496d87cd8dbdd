"""The totals of an export, summed from the very rows that go into its file, and compared with the ledger's sums."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from gateway.db.billing.charges import ChargeRow
from gateway.db.billing.exports import LedgerRow, LedgerSums


class Totals(msgspec.Struct, frozen=True):
    """Tokens by kind, and money in nanos of the currency."""

    input_tokens: int
    """Prompt tokens without the cached ones."""
    cached_input_tokens: int
    output_tokens: int
    currency: str
    cost_nanos: int
    credit_nanos: int
    """The part of the cost that credits paid."""


class Sums:
    """Adds up the rows of an export."""

    def __init__(self) -> None:
        self.num_rows = 0
        self._tokens = {"input": 0, "cached_input": 0, "output": 0}
        self._cost_nanos = 0
        self._credit_nanos = 0

    def add_ledger(self, rows: Sequence[LedgerRow]) -> None:
        """Add ledger rows; cached tokens of a prompt count as cached input alone."""
        self.num_rows += len(rows)
        prompt, cached = sum(row.prompt_tokens for row in rows), sum(row.cached_tokens for row in rows)
        self._tokens["input"] += prompt - cached
        self._tokens["cached_input"] += cached
        self._tokens["output"] += sum(row.completion_tokens for row in rows)
        self._cost_nanos += sum(row.cost_nanos for row in rows)

    def add_charges(self, rows: Sequence[ChargeRow]) -> None:
        """Add charges: tokens by line item, and the cost, which for a credit is negative and summed apart."""
        self.num_rows += len(rows)
        for row in rows:
            if row.num_tokens is not None:
                self._tokens[row.line_item] += row.num_tokens
            if row.line_item == "credit":
                self._credit_nanos -= row.cost_nanos
            else:
                self._cost_nanos += row.cost_nanos

    def totals(self, currency: str) -> Totals:
        """Return the sums of all rows so far, as amounts of a currency."""
        return Totals(
            input_tokens=self._tokens["input"],
            cached_input_tokens=self._tokens["cached_input"],
            output_tokens=self._tokens["output"],
            currency=currency,
            cost_nanos=self._cost_nanos,
            credit_nanos=self._credit_nanos,
        )


def difference(totals: Totals, ledger: LedgerSums) -> str | None:
    """Return the difference between an export and the ledger, in words; None where they are equal to the nano."""
    for name in ("input_tokens", "cached_input_tokens", "output_tokens", "cost_nanos"):
        found, wanted = getattr(totals, name), getattr(ledger, name)
        if found != wanted:
            return f"{name} is {found} in the export and {wanted} in the ledger"
    return None
