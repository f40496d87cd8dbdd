"""What names an adapter: whose it is, what its owner calls it, which version, and the content it stands for.

Knows nothing of files or databases.
"""

from __future__ import annotations

import re

import msgspec

MAX_NAME_CHARS = 64

_NAME = re.compile(rf"[a-z0-9][a-z0-9._-]{{0,{MAX_NAME_CHARS - 1}}}")


class AdapterRef(msgspec.Struct, frozen=True):
    """One version of one tenant's adapter. digest: its canonical digest, the key in the adapter store."""

    tenant: str
    name: str
    version: int
    digest: str


def check_adapter_name(name: str) -> None:
    """Raises ValueError unless name is 1 to 64 of a-z, 0-9, dot, underscore and hyphen, the first a letter or digit."""
    if _NAME.fullmatch(name) is None:
        raise ValueError(
            f"adapter name {name[: MAX_NAME_CHARS + 1]!r} is not valid: use 1 to {MAX_NAME_CHARS} characters of "
            "a-z, 0-9, '.', '_' and '-', and begin with a letter or digit"
        )
