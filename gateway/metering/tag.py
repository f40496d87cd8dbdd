"""The tag that travels through the engine with a request, so that any gateway can write its usage event."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

UnixNs = Annotated[int, Meta(ge=0, le=2**63 - 1)]


class MeterTag(msgspec.Struct, frozen=True, omit_defaults=True):
    """The facts about a request's usage event that the engine does not know.

    They travel as opaque bytes in `GenerateRequest.meter`, so that any gateway that receives the usage can write the
    event.
    """

    organization_id: str
    project_id: str
    api_key_id: str
    endpoint: str
    """The path of the request, such as `/v1/chat/completions`."""
    model: str
    """The base model and the adapter, as `Route.model` has them: `<base>` or `<base>:<adapter>`."""
    adapter_id: str | None
    adapter_version: int | None
    adapter_digest: str | None
    """The digest of the adapter's content; None for a base model."""
    created_at_ns: UnixNs
    """The time of the request's admission by the database's clock, in Unix nanoseconds. It decides the windows of
    limits that the request counts in."""
    stream: bool
    """True if the reply is streamed."""
    service_tier: str = "default"
    journal_id: str = ""
    """The journal of the gateway that sent the request."""
    experiment_id: str | None = None
    """The experiment whose arm the request got, if any; the four fields below are about this experiment."""
    experiment_version: int | None = None
    """The number of the definition's change that was in force."""
    experiment_arm: int | None = None
    """The index of the arm in the experiment."""
    experiment_epoch: int | None = None
    """The epoch that chose the arm; 0 where the request is not analysed."""
    experiment_delivered: bool | None = None
    """True if the request got the arm's whole treatment."""
    own_key: bool | None = None
    """True where the server is asked with the project's own key: nobody is charged for the tokens."""
    trace_id: str | None = None
    """The trace of the request, where it has one."""
    unit_digest: bytes = b""
    """The digest of the request's experiment unit, which is not stored in the ledger."""


encode_tag = msgspec.msgpack.Encoder().encode
decode_tag = msgspec.msgpack.Decoder(MeterTag).decode
