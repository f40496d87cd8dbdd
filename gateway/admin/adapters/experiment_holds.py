"""Refuses to remove an adapter, version, alias or pool that an arm of an experiment needs."""

from __future__ import annotations

from collections.abc import Sequence

from gateway.domain.errors import Conflict

SHOWN = 10


def check_not_in_experiment(names: Sequence[str], what: str) -> None:
    """Check that no experiment needs a thing that is to be removed. names: the names of the experiments that need it.

    what: the thing, in words for the beginning of a sentence.

    Raises Conflict: when there are names.
    """
    if not names:
        return
    shown = ", ".join(f"'{name}'" for name in names[:SHOWN])
    are = "experiment" if len(names) == 1 else "experiments"
    raise Conflict(
        f"{what} is an arm of the {are} {shown}. Stop and decide first.", param="name", code="held_by_experiment"
    )
