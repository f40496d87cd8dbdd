"""Numbers of a `config.json`, of which each is a number within bounds or a refusal that names its key."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from engine.config.model import UnsupportedModel

MOST = 2**31 - 1
SHOWN = 80
"""The most characters of a value that a refusal shows."""


def beginning_of(value: Any) -> str:
    """Return the beginning of a value's representation, for a refusal: a file may give a list of any length."""
    text = repr(value)
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}..."


def number(raw: Mapping[str, Any], key: str, default: float, *, above: float = -math.inf) -> float:
    """Return the finite number of a key, or the default where the key is missing or null.

    above: the number has to be larger than this.

    Raises UnsupportedModel: for anything else.
    """
    value = raw.get(key)
    value = default if value is None else value
    if type(value) not in (int, float) or not abs(value) < 1e30 or value <= above:
        bound = "" if above == -math.inf else f" above {above:g}"
        raise UnsupportedModel(f"config.json: {key} must be a finite number{bound}")
    return float(value)


def whole_number(raw: Mapping[str, Any], key: str, most: int = MOST, default: int | None = None) -> int:
    """Return the whole number of a key, from 1 to most, or the default where the key is missing or null.

    default: None: the key must be there.

    Raises UnsupportedModel: for anything else, and for a missing key without a default.
    """
    value = raw.get(key)
    value = default if value is None else value
    if value is None:
        raise UnsupportedModel(f"config.json: {key} is missing")
    if type(value) is not int or not 0 < value <= most:
        raise UnsupportedModel(f"config.json: {key} must be a whole number above 0, and at most {most}")
    return value
