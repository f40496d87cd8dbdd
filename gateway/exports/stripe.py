"""Stripe's meter events (https://docs.stripe.com/api/billing/meter-event/create), one JSON object per line.

A ledger row gives one event for each kind of tokens (`lorikeet_input_tokens`, `lorikeet_cached_input_tokens`,
`lorikeet_output_tokens`) and one for its cost (`lorikeet_cost_nanos`), without those of value 0: an operator who bills
by tokens sends Stripe the first three, one who bills by cost the last. The identifier is made of the row's key in the
ledger, so that an event which is sent twice, even from two exports, counts once; an event per day would change with a
late row under the same identifier. A value is a whole number as text, negative where the row is the difference to a
smaller count. The customer is null where the project has none: such an event is written all the same, and Stripe
refuses it. A closed month keeps the customers of the moment at which it was closed, so customers are set before that.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import msgspec

from gateway.db.billing.exports import LedgerRow

MAX_IDENTIFIER_CHARACTERS = 100


class Payload(msgspec.Struct, frozen=True):
    """The customer and the quantity of a meter event."""

    stripe_customer_id: str | None
    value: str
    """The quantity, as decimal text."""


class MeterEvent(msgspec.Struct, frozen=True):
    """One meter event, as Stripe takes it."""

    event_name: str
    identifier: str
    """The identifier by which Stripe counts an event once."""
    timestamp: int
    """The time of the request in Unix seconds."""
    payload: Payload


class StripeEvents:
    """The encoder of meter events.

    customers: Stripe's ids by project. num_events: the events so far. without_customer: the projects of events without
    a customer.
    """

    def __init__(self, customers: Mapping[str, str]) -> None:
        self.num_events = 0
        self.without_customer: set[str] = set()
        self._customers = customers
        self._encoder = msgspec.json.Encoder()

    def start(self) -> bytes:
        """Return no bytes: a file of JSON lines has no head."""
        return b""

    def encode(self, rows: Sequence[LedgerRow]) -> bytes:
        """Return the meter events of ledger rows, a line for each, and count the events."""
        events = [event for row in rows for event in self._events(row)]
        self.num_events += len(events)
        return self._encoder.encode_lines(events)

    def finish(self) -> bytes:
        """Return no bytes: a file of JSON lines has no end of its own."""
        return b""

    def _events(self, row: LedgerRow) -> Iterator[MeterEvent]:
        customer, timestamp = self._customers.get(row.project_id), int(row.created_at.timestamp())
        for meter, value in (
            ("input_tokens", row.prompt_tokens - row.cached_tokens),
            ("cached_input_tokens", row.cached_tokens),
            ("output_tokens", row.completion_tokens),
            ("cost_nanos", row.cost_nanos),
        ):
            if value != 0:
                if customer is None:
                    self.without_customer.add(row.project_id)
                identifier = f"{row.request_id}:{row.attempt}:{row.revision}:{meter}"
                assert len(identifier) <= MAX_IDENTIFIER_CHARACTERS
                yield MeterEvent(f"lorikeet_{meter}", identifier, timestamp, Payload(customer, str(value)))
