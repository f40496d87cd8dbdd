"""The parts of a model string: `<base>`, `<base>:<adapter>`, `<base>:<adapter>@<version>` or, without colon, an alias.

Knows the syntax alone, and not whether an adapter or alias of the name exists, nor which project owns it.
"""

from __future__ import annotations

import re
from collections.abc import Collection

import msgspec

from adapters.ref import check_adapter_name

_VERSION = re.compile(r"[1-9][0-9]{0,8}")


class WantedAdapter(msgspec.Struct, frozen=True):
    """An adapter, a version of one, or an alias, as a model string names it."""

    name: str
    """The name of the adapter or of the alias."""
    base: str | None = None
    """The name of the pool; None for an alias."""
    version: int | None = None
    """The number of the version; None stands for the current version."""
    is_alias: bool = False
    """True if the name is an alias."""


def read_model(model: str, pools: Collection[str]) -> WantedAdapter | None:
    """Return the adapter or alias that a model string names, for pools of these names; None if it names nothing.

    The string must not itself be the name of a pool, which stands for a base model.
    """
    prefix, colon, rest = model.partition(":")
    name, at, number = rest.partition("@") if colon else (model, "", "")
    if (colon and prefix not in pools) or (at and _VERSION.fullmatch(number) is None):
        return None
    try:
        check_adapter_name(name)
    except ValueError:
        return None
    return WantedAdapter(name, prefix if colon else None, int(number) if at else None, is_alias=not colon)
