"""The check that content which was accepted for one base model fits another: its modules, their shapes, the rank.

Reads the configuration and the header of the weights, not the weights: these were checked when the content came. Knows
neither names nor who owns an adapter.
"""

from __future__ import annotations

from adapters.errors import AdapterMissing, AdapterRejected, StoreFailure
from adapters.peft_format import check_fit, check_rank, read_description
from adapters.report import BaseShape
from adapters.store import AdapterStore

NUM_REASONS = 2
"""The most reasons of one adapter that are given; the others are only counted."""


def fit_error(store: AdapterStore, digest: str, base: BaseShape, max_rank: int) -> str:
    """Return why the content with this digest cannot be served on a base model; "" where it can."""
    reasons: list[str] = []
    try:
        with store.reading(digest) as folder:
            adapter = read_description(folder)
        check_fit(adapter, base.targets, base.num_layers, base.layers_of)
        check_rank(adapter, max_rank)
    except AdapterRejected as rejected:
        reasons = rejected.reasons
    except (AdapterMissing, StoreFailure, OSError) as error:
        reasons = [f"its files cannot be read: {error}"]
    more = [f"and {len(reasons) - NUM_REASONS} more"] if len(reasons) > NUM_REASONS else []
    return "; ".join([*reasons[:NUM_REASONS], *more])
