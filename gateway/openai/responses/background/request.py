"""The request for a response that runs in the background, in the form in which it is stored until it runs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from gateway.domain.errors import InvalidRequest
from gateway.openai.responses.conversation import own_items
from gateway.openai.responses.items import Item
from gateway.openai.responses.wire import CreateResponse

_PREFIX = b"x-lorikeet-"
_WIRE = msgspec.json.Decoder(CreateResponse)
_ITEMS = msgspec.json.Decoder(list[Item])


class BackgroundRequest(msgspec.Struct, frozen=True):
    """The parts of a request that are stored, to run it later as if its client had just sent it."""

    request_id: str
    body: bytes
    """The body of the request."""
    headers: list[tuple[bytes, bytes]]
    """The names and values of the headers that experiments read."""
    referenced: bytes = b"[]"
    """The stored items that references in the input stand for, as a JSON list in their order."""
    traceparent: str = ""
    """The header that names the span of the request; "" for none."""

    @property
    def wire(self) -> CreateResponse:
        """The body of the request, decoded."""
        return _WIRE.decode(self.body)

    def items(self) -> list[Item]:
        """Return the items that the request itself sent; none where a reference in the input has no stored item."""
        given = self.wire.input
        if isinstance(given, str):
            return own_items(given, {})
        ids = [each.id or "" for each in given if each.type == "item_reference"]
        try:
            return own_items(given, dict(zip(ids, _ITEMS.decode(self.referenced), strict=False)))
        except InvalidRequest:  # queued by a version of the server that kept no such items
            return []


def referenced_items(wire: CreateResponse, items: Sequence[Item]) -> bytes:
    """Return the stored items that references in the input refer to, as a JSON list.

    items: all items that the request itself sent.
    """
    if isinstance(wire.input, str):
        return b"[]"
    found = [item for given, item in zip(wire.input, items, strict=True) if given.type == "item_reference"]
    return msgspec.json.encode(found)


def experiment_headers(headers: Iterable[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
    """Return the names and values of a request's headers that experiments read. A stored request keeps only these."""
    return [(bytes(name), bytes(value)) for name, value in headers if name.startswith(_PREFIX)]
