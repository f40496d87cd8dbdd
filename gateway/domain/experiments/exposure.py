"""The arm that one request of an experiment got: what the ledger, the reply's header and the log line tell of it."""

from __future__ import annotations

import msgspec

from gateway.domain.experiments.assignment import OPEN_FEATURE_REASONS, Reason

HEADER = "x-lorikeet-experiment"
"""The header of a reply that names experiment, arm and reason, as RFC 9651 writes a string with parameters."""


class Exposure(msgspec.Struct, frozen=True):
    """A request's place in an experiment. All prompts of one request share it."""

    experiment_id: str
    name: str
    """The name of the experiment."""
    version: int
    """The number of the definition's latest change."""
    arm: int
    """The index of the arm that serves the request."""
    arm_name: str
    epoch: int
    """The epoch whose table chose the arm; 0 where the request is not analysed."""
    reason: Reason
    digest: bytes = b""
    """The digest of the request's unit (`assignment.unit_digest`); empty where the request names none."""

    @property
    def is_analysed(self) -> bool:
        return self.epoch > 0

    @property
    def header(self) -> str:
        """The value of the reply's header."""
        reason = OPEN_FEATURE_REASONS[self.reason]
        return f'"{self.name}";v={self.version};arm="{self.arm_name}";reason={reason}'

    @property
    def log_fields(self) -> dict[str, str]:
        """The fields of the request's log line, with OpenTelemetry's names. The unit is known by its digest alone."""
        fields = {
            "feature_flag.key": self.name,
            "feature_flag.version": str(self.version),
            "feature_flag.result.variant": self.arm_name,
            "feature_flag.result.reason": OPEN_FEATURE_REASONS[self.reason],
        }
        return fields | {"feature_flag.context.id": self.digest.hex()} if self.digest else fields
