"""The changes of an arm to a request, apart from the model that serves it: plain data. Knows no field of the API."""

from __future__ import annotations

from typing import Literal

import msgspec

from gateway.domain.adapters.defaults import Defaults


class Treatment(msgspec.Struct, frozen=True, omit_defaults=True):
    """The values that replace or fill fields in the requests of an arm, or of the alias that an arm has become."""

    defaults: Defaults
    mode: Literal["fill", "replace"] = "fill"
    """The fields of a request that take the defaults.

    fill: the fields that the request leaves open.
    replace: also the fields to which the request gives a value.
    """
