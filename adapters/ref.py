"""What an adapter may be called by its owner. What it is, its digest says (`adapters.digest`)."""

from __future__ import annotations

import re

MAX_NAME_CHARS = 64

_NAME = re.compile(rf"[a-z0-9][a-z0-9._-]{{0,{MAX_NAME_CHARS - 1}}}")


def check_adapter_name(name: str) -> None:
    """Raises ValueError unless name is 1 to 64 of a-z, 0-9, dot, underscore and hyphen, the first a letter or digit."""
    if _NAME.fullmatch(name) is None:
        raise ValueError(
            f"adapter name {name[: MAX_NAME_CHARS + 1]!r} is not valid: use 1 to {MAX_NAME_CHARS} characters of "
            "a-z, 0-9, '.', '_' and '-', and begin with a letter or digit"
        )
