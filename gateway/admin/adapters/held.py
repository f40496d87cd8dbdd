"""The refusal to take away what an arm of an experiment needs."""

from __future__ import annotations

from collections.abc import Sequence

from gateway.domain.errors import Conflict

SHOWN = 10


def check_not_in_experiment(names: Sequence[str], what: str) -> None:
    """Raise Conflict where experiments of these names need something. what: it, as a sentence begins with it."""
    if not names:
        return
    shown = ", ".join(f"'{name}'" for name in names[:SHOWN])
    are = "experiment" if len(names) == 1 else "experiments"
    raise Conflict(
        f"{what} is an arm of the {are} {shown}. Stop and decide first.", param="name", code="held_by_experiment"
    )
