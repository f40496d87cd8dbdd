"""The arm that one request of an experiment got, for the ledger, the reply's header and the log line."""

from __future__ import annotations

from hashlib import blake2b

import msgspec

from gateway.domain.experiments.assignment import OPEN_FEATURE_REASONS, Reason

PROVIDER = "lorikeet"
HEADER = "x-lorikeet-experiment"
"""The name of the reply's header with experiment, arm and reason: a string with parameters, as in RFC 9651."""


class Exposure(msgspec.Struct, frozen=True):
    """A request's arm and place in an experiment. All prompts of one request share it."""

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
        """True if the request counts in the results."""
        return self.epoch > 0

    @property
    def header(self) -> str:
        """The value of the reply's header."""
        reason = OPEN_FEATURE_REASONS[self.reason]
        return f'"{self.name}";v={self.version};arm="{self.arm_name}";reason={reason}'

    def log_fields(self, project_id: str) -> dict[str, str]:
        """Return the fields of the request's log line, with OpenTelemetry's names.

        The unit is known by `log_id`: log lines stay when a unit is forgotten, so they must not contain its digest.
        """
        fields = {
            "feature_flag.provider.name": PROVIDER,
            "feature_flag.set.id": project_id,
            "feature_flag.key": self.name,
            "feature_flag.version": str(self.version),
            "feature_flag.result.variant": self.arm_name,
            "feature_flag.result.reason": OPEN_FEATURE_REASONS[self.reason],
        }
        return fields | {"feature_flag.context.id": log_id(self.digest)} if self.digest else fields


def log_id(digest: bytes) -> str:
    """Return the id of a unit in log lines: a digest of its digest, from which the digest cannot be found."""
    return blake2b(digest, digest_size=8, person=b"lorikeet log").hexdigest()
