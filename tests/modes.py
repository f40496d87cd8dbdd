"""The modes of files below a folder, as `find -perm` shows them."""

from __future__ import annotations

import os
import stat
from pathlib import Path


def open_to_others(folder: Path) -> list[str]:
    """Return the path and mode of every file below a folder that other users may read, write or enter."""
    found = []
    for path in sorted(folder.rglob("*")):
        mode = path.lstat().st_mode
        if not stat.S_ISLNK(mode) and mode & 0o077:
            found.append(f"{stat.filemode(mode)} {os.path.relpath(path, folder)}")
    return found
