"""Finds a pool by the name that was typed. Paths have its id, since a name may hold a slash."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from gateway.cli.errors import CommandFailed
from gateway.domain.billing.book import ANY

if TYPE_CHECKING:
    from gateway.cli.client import AdminClient


def find_pool(client: AdminClient, name: str) -> dict[str, Any]:
    """Return the pool of this name or with this id.

    Raises CommandFailed: when there is none.
    """
    found = [pool for pool in client.get_all("/pools") if name in (pool["name"], pool["id"])]
    if not found:
        raise CommandFailed(f"there is no pool named '{name}'; `lorikeet pool list` lists all pools")
    return found[0]


def warn_of_unknown_model(model: str, client: AdminClient) -> None:
    """Warn that a price or a limit is for a model that no pool has, so that it applies to no request.

    model: a model string, whose base model is looked for; "*" stands for any model, and gets no warning.
    """
    if model == ANY:
        return
    try:
        served = {client.get("/status")["model"]: None}
        served |= dict.fromkeys(pool["name"] for pool in client.get_all("/pools"))
    except CommandFailed:  # the caller may not see pools
        return
    if model.partition(":")[0] not in served:
        shown = ", ".join(f"'{name}'" for name in served)
        print(f"lorikeet: no model '{model}' is served here, only {shown}", file=sys.stderr)
