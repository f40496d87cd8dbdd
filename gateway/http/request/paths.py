"""Paths that mean another one than they say: a proxy that keeps a path from clients may not know them for it.

The framework's router takes `//admin`, `/%61dmin` and `/admin` for the same. Knows no route.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from litestar.types import HTTPScope, Scope

_SLASHES = re.compile("/{2,}")


def path_as_sent(scope: Scope) -> str:
    """Return the path of a request as its client wrote it, without the query: nothing in it is decoded."""
    raw: bytes = scope["raw_path"]
    return raw.partition(b"?")[0].decode("latin-1")


def is_disguised(scope: HTTPScope, fenced: Sequence[str]) -> bool:
    """Tell whether the path of a request means one at or below any of `fenced`, but is written in another way.

    A slash that follows the beginning and is written `%2F` counts as well: a reader of the segments would see another
    path.
    """
    written = path_as_sent(scope)
    if "%" not in written and "//" not in written:
        return False
    meant = _SLASHES.sub("/", scope["path"])
    return any(_is_within(meant, each) and not _is_within(written, each) for each in fenced)


def _is_within(path: str, beginning: str) -> bool:
    return path == beginning or path.startswith(f"{beginning}/")
