"""What a model string asks for: `<base>`, `<base>:<adapter>`, `<base>:<adapter>@<version>` or, without colon, an alias.

Syntax alone: whether there is such a thing, and whose it is, the database knows.
"""

from __future__ import annotations

import re

import msgspec

from adapters.ref import check_adapter_name

_VERSION = re.compile(r"[1-9][0-9]{0,8}")


class Wanted(msgspec.Struct, frozen=True):
    """name: of an adapter, or of an alias. version None: the current one."""

    name: str
    version: int | None = None
    is_alias: bool = False


def read_model(model: str, base: str) -> Wanted | None:
    """None for what nothing can be called. The base itself is not asked about."""
    prefix, colon, rest = model.partition(":")
    name, at, number = rest.partition("@") if colon else (model, "", "")
    if (colon and prefix != base) or (at and _VERSION.fullmatch(number) is None):
        return None
    try:
        check_adapter_name(name)
    except ValueError:
        return None
    return Wanted(name, int(number) if at else None, is_alias=not colon)
