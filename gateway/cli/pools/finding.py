"""Finds a pool by the name that was typed. Paths have its id, since a name may hold a slash."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gateway.cli.errors import CommandFailed

if TYPE_CHECKING:
    from gateway.cli.client import AdminClient


def find_pool(client: AdminClient, name: str) -> dict[str, Any]:
    """Return the pool of this name or with this id. Raises CommandFailed where there is none."""
    found = [pool for pool in client.get_all("/pools") if name in (pool["name"], pool["id"])]
    if not found:
        raise CommandFailed(f"there is no pool named '{name}'; `lorikeet pool list` lists all pools")
    return found[0]
