"""Paths that mean another one than they say: a proxy that keeps a path from clients may not know them for it.

The framework's router takes `//admin`, `/%61dmin` and `/admin` for the same. Knows no route.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from litestar.types import HTTPScope

_SLASHES = re.compile("/{2,}")


def is_disguised(scope: HTTPScope, fenced: Sequence[str]) -> bool:
    """Tell whether the path of a request means one that begins with any of `fenced`, but is written in another way."""
    written = scope["raw_path"].decode("latin-1")
    if "%" not in written and "//" not in written:
        return False
    meant = _SLASHES.sub("/", scope["path"])
    return any(meant.startswith(each) and not written.startswith(each) for each in fenced)
