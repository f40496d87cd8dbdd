"""The refusal of a change of a pool's base model that adapters do not survive, in words. Pure."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

MAX_NAMES = 20
"""The most adapters that a refusal names; of further ones it gives the number only."""


class UnfitAdapter(msgspec.Struct, frozen=True):
    """A version of an adapter that the new base of its pool cannot serve."""

    name: str
    """The project's name, the adapter's name and the version, as in `acme:support@2`."""
    why: str


def unfit_refusal(unfit: Sequence[UnfitAdapter]) -> str:
    """Return the sentences that name the adapters which do not fit, and tell how to change the base regardless."""
    named = "; ".join(f"{each.name} ({each.why})" for each in unfit[:MAX_NAMES])
    more = f"; and {len(unfit) - MAX_NAMES} more" if len(unfit) > MAX_NAMES else ""
    number = "1 adapter version does" if len(unfit) == 1 else f"{len(unfit)} adapter versions do"
    return (
        f"{number} not fit the new base model and would no longer answer: {named}{more}. "
        "To change the base all the same, send the change with allow_unfit_adapters (--drop-adapters)."
    )
