"""The fields of a request about experiments: its unit, and the arm that it asks for, or that it wants none."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from gateway.domain.errors import InvalidRequest
from gateway.domain.experiments.exposure import HEADER
from gateway.domain.tenancy.principal import Principal
from gateway.routing.experiments import ARM_HEADER

UNIT_HEADER = "x-lorikeet-unit"
MAX_UNIT_HEADER_CHARS = 128
MAX_UNIT_CHARS = 512
"""The most characters of a body's field that can be a unit."""

_PREFIX, _ARM, _UNIT, _OFF = b"x-lorikeet-", ARM_HEADER.encode(), UNIT_HEADER.encode(), HEADER.encode()
_METADATA = "metadata."

Headers = Iterable[tuple[bytes, bytes]]


class ExperimentFields:
    """The unit that a request names, and the arm that it asks for, as experiments read them from headers and body.

    Values are checked only when an experiment reads them: other requests are not refused for them.
    """

    __slots__ = ("_arm", "_body", "_caller", "_off", "_unit")

    def __init__(self, headers: Headers, caller: Principal, body: Any) -> None:
        """Find the unit and arm of a request. body: a struct of the request's body; absent fields name no unit."""
        self._caller = caller
        self._body = body
        self._arm: bytes | None = None
        self._unit: bytes | None = None
        self._off: bytes | None = None
        for name, value in headers:
            if name.startswith(_PREFIX):
                if name == _UNIT:
                    self._unit = value
                elif name == _ARM:
                    self._arm = value
                elif name == _OFF:
                    self._off = value

    @property
    def forced_arm(self) -> str | None:
        """The arm that the header `x-lorikeet-arm` asks for."""
        return None if self._arm is None else self._arm.decode("latin-1")

    @property
    def is_off(self) -> bool:
        """True if the header `x-lorikeet-experiment` says `off`: no other value means anything."""
        return self._off is not None and self._off.strip().lower() == b"off"

    def unit(self, source: str) -> str | None:
        """Return the unit that the request names in a source (`definition.UnitSource.source`), if any.

        Raises InvalidRequest: when the header of a unit is too long or not UTF-8.
        """
        if source == UNIT_HEADER:
            return None if self._unit is None else _unit_of(self._unit)
        if source == "api_key":
            return self._caller.api_key_id
        if source.startswith(_METADATA):
            value = (self._body.metadata or {}).get(source.removeprefix(_METADATA))
        else:
            value = getattr(self._body, source, None)
        return value if value is not None and len(value) <= MAX_UNIT_CHARS else None


def _unit_of(header: bytes) -> str:
    try:
        unit = header.decode()
    except UnicodeDecodeError:
        unit = None
    if unit is None or len(unit) > MAX_UNIT_HEADER_CHARS:
        raise InvalidRequest(
            f"The header {UNIT_HEADER} must have at most {MAX_UNIT_HEADER_CHARS} characters, in UTF-8.",
            param=UNIT_HEADER,
            code="invalid_value",
        )
    return unit
