"""The interface by which batches have their lines run, by packages that batches do not import."""

from __future__ import annotations

from typing import Protocol

import msgspec

from gateway.domain.batches.line import BatchLine
from gateway.domain.tenancy.principal import Principal


class LineReply(msgspec.Struct, frozen=True, kw_only=True):
    """The reply to one line."""

    status: int
    body: bytes
    """The body as JSON."""
    input_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0


class LineRunner(Protocol):
    """Runs lines of batches as requests of their projects. A gateway process has one."""

    async def run(
        self, principal: Principal, endpoint: str, body: bytes, request_id: str, line: BatchLine
    ) -> LineReply:
        """Answer one line as if its body had come over HTTP.

        If the call is cancelled, the line is aborted and nobody is billed for it.

        Raises GatewayError: when the line is refused or fails.
        """

    def disown(self, request_id: str, line: BatchLine) -> None:
        """Ensure that nobody is billed for the usage of a line that is about to be aborted."""
