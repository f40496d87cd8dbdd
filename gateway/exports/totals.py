"""What an export adds up to, summed from the very rows that go into its file, and compared with the ledger's sums."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from gateway.db.exports import ChargeRow, CurrencySum, LedgerRow


class Totals(msgspec.Struct, frozen=True):
    """Tokens by kind, of which input is without the cached; money in nanos by currency, credits as what they paid.

    What had no price cost nothing and is in no currency.
    """

    input_tokens: int
    cached_input_tokens: int
    output_tokens: int
    cost_nanos: dict[str, int]
    credit_nanos: dict[str, int]


class Sums:
    """Adds rows up."""

    def __init__(self) -> None:
        self.num_rows = 0
        self._tokens = {"input": 0, "cached_input": 0, "output": 0}
        self._cost: dict[str, int] = {}
        self._credits: dict[str, int] = {}

    def add_ledger(self, rows: Sequence[LedgerRow]) -> None:
        self.num_rows += len(rows)
        prompt, cached = sum(row.prompt_tokens for row in rows), sum(row.cached_tokens for row in rows)
        self._tokens["input"] += prompt - cached
        self._tokens["cached_input"] += cached
        self._tokens["output"] += sum(row.completion_tokens for row in rows)
        for row in rows:
            _add(self._cost, row.currency, row.cost_nanos)

    def add_charges(self, rows: Sequence[ChargeRow]) -> None:
        self.num_rows += len(rows)
        for row in rows:
            if row.num_tokens is not None:
                self._tokens[row.line_item] += row.num_tokens
            if row.line_item == "credit":
                _add(self._credits, row.currency, -row.cost_nanos)
            else:
                _add(self._cost, row.currency, row.cost_nanos)

    def totals(self) -> Totals:
        return Totals(
            input_tokens=self._tokens["input"],
            cached_input_tokens=self._tokens["cached_input"],
            output_tokens=self._tokens["output"],
            cost_nanos=dict(sorted(self._cost.items())),
            credit_nanos=dict(sorted(self._credits.items())),
        )


def _add(sums: dict[str, int], currency: str | None, nanos: int) -> None:
    if currency is not None:
        sums[currency] = sums.get(currency, 0) + nanos


def difference(totals: Totals, ledger: Iterable[CurrencySum]) -> str | None:
    """What an export has that the ledger has not, or the other way round; None where they are equal to the nano."""
    parts = list(ledger)
    expected = {
        "input_tokens": sum(part.input_tokens for part in parts),
        "cached_input_tokens": sum(part.cached_input_tokens for part in parts),
        "output_tokens": sum(part.output_tokens for part in parts),
        "cost_nanos": {part.currency: part.cost_nanos for part in parts if part.currency is not None},
    }
    for name, wanted in expected.items():
        found = getattr(totals, name)
        if name == "cost_nanos":
            found, wanted = _without_zeros(found), _without_zeros(wanted)
        if found != wanted:
            return f"{name} is {found} in the export and {wanted} in the ledger"
    return None


def _without_zeros(sums: dict[str, int]) -> dict[str, int]:
    return {currency: nanos for currency, nanos in sums.items() if nanos != 0}
