"""The sources under test, as git names them: the tree of the served packages as they lie here, committed or not."""

from __future__ import annotations

import os
import subprocess
import tempfile
from pathlib import Path

PARTS = ("adapters", "engine", "gateway", "kernels")
AS_GIT_NAMES_IT = f"git ls-tree HEAD {' '.join(PARTS)} | git mktree"
"""A git command that prints the hash that `tree_of` returns for a checkout without changes."""


def tree_of(repository: Path) -> str:
    """Return the hash of the files below PARTS as they lie in the checkout. The checkout's own index is not changed."""
    with tempfile.TemporaryDirectory() as folder:
        environ = os.environ | {"GIT_INDEX_FILE": str(Path(folder) / "index")}
        _git(repository, environ, "add", "--all", "--", *PARTS)
        return _git(repository, environ, "write-tree")


def _git(repository: Path, environ: dict[str, str], *arguments: str) -> str:
    ended = subprocess.run(
        ["git", *arguments], cwd=repository, env=environ, capture_output=True, text=True, check=False
    )
    assert ended.returncode == 0, f"git {arguments[0]}: {ended.stderr}"
    return ended.stdout.strip()
