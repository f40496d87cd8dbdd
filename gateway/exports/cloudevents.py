"""CloudEvents 1.0 in their JSON format (https://github.com/cloudevents/spec), one event per line and ledger row.

`source` and `id` together name an event in the world: the installation, and the row's key in its ledger.
"""

from __future__ import annotations

import datetime
from collections.abc import Sequence

import msgspec

from gateway.db.billing.exports import LedgerRow

EVENT_TYPE = "dev.lorikeet.usage.recorded.v1"


class CloudEvent(msgspec.Struct, frozen=True):
    """An event for one row of the ledger."""

    specversion: str
    id: str
    """The identity of the row, which is unique within the source."""
    source: str
    """The installation."""
    type: str
    subject: str
    """The id of the project."""
    time: datetime.datetime
    """The time of the request."""
    datacontenttype: str
    data: LedgerRow


class CloudEvents:
    """The encoder of ledger rows as CloudEvents."""

    def __init__(self, installation_id: str) -> None:
        self._source = f"urn:lorikeet:{installation_id}"
        self._encoder = msgspec.json.Encoder()

    def start(self) -> bytes:
        """Return no bytes: a file of JSON lines has no head."""
        return b""

    def encode(self, rows: Sequence[LedgerRow]) -> bytes:
        """Return one line for each ledger row, its event in JSON."""
        return self._encoder.encode_lines([self._event(row) for row in rows])

    def finish(self) -> bytes:
        """Return no bytes: a file of JSON lines has no end of its own."""
        return b""

    def _event(self, row: LedgerRow) -> CloudEvent:
        return CloudEvent(
            specversion="1.0",
            id=f"{row.request_id}:{row.attempt}:{row.revision}",
            source=self._source,
            type=EVENT_TYPE,
            subject=row.project_id,
            time=row.created_at,
            datacontenttype="application/json",
            data=row,
        )
