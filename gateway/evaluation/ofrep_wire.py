"""OpenFeature's remote evaluation protocol (OFREP 0.1) on the wire: https://github.com/open-feature/protocol."""

from __future__ import annotations

from typing import Any, Literal

import msgspec
from msgspec import UNSET, UnsetType

ErrorCode = Literal["PARSE_ERROR", "TARGETING_KEY_MISSING", "INVALID_CONTEXT", "FLAG_NOT_FOUND", "GENERAL"]
Reason = Literal["SPLIT", "TARGETING_MATCH", "DISABLED", "DEFAULT"]


class EvaluateFlags(msgspec.Struct, frozen=True):
    """The facts that an application knows about its user. Unknown fields are ignored, as OFREP wants."""

    context: dict[str, Any] = {}
    """`targetingKey` names the unit: the same text that requests name. Other fields are not read."""


class EvaluatedFlag(msgspec.Struct, frozen=True, kw_only=True):
    """The arm that the gateway serves to a unit."""

    key: str
    """The name of the experiment."""
    value: str
    """The name of the arm."""
    variant: str
    """The name of the arm."""
    reason: Reason
    metadata: dict[str, str | int]
    """The id and the version of the experiment, and the model string by which requests name it."""


class EvaluatedFlags(msgspec.Struct, frozen=True, kw_only=True):
    """The arms of one unit in all experiments that have started."""

    flags: list[EvaluatedFlag]


class FlagError(msgspec.Struct, frozen=True, kw_only=True):
    """The reply for a flag without an arm, with the reason."""

    key: str | UnsetType = UNSET
    """The name that was asked for."""
    errorCode: ErrorCode
    errorDetails: str
