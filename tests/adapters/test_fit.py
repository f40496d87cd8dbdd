"""Content that was accepted for one base is checked against another one by its modules, shapes and rank."""

from __future__ import annotations

from pathlib import Path

from adapters.fit import why_unfit
from adapters.report import BaseShape
from adapters.store import AdapterStore
from tests.adapters.folders import HIDDEN, TARGETS, tensors_of_width, write_adapter

SMALL = BaseShape(TARGETS, 2)
WIDE = BaseShape({"q_proj": (2 * HIDDEN, 2 * HIDDEN)}, 2)


def test_content_fits_a_base_of_its_shapes_and_no_other(tmp_path: Path) -> None:
    store = AdapterStore(tmp_path / "store")
    digest = store.add(write_adapter(tmp_path / "one"))
    wide = store.add(write_adapter(tmp_path / "wide", tensors=tensors_of_width(2 * HIDDEN)))
    assert why_unfit(store, digest, SMALL, max_rank=8) == ""
    assert why_unfit(store, wide, WIDE, max_rank=8) == ""
    assert why_unfit(store, digest, WIDE, max_rank=8) == (
        "layer 0 q_proj: made for (in, out) = (8, 8), the base model has (16, 16)"
    )
    assert why_unfit(store, digest, BaseShape({"k_proj": (8, 8)}, 2), max_rank=8) == (
        "layer 0 q_proj: the base model takes no adapter there"
    )
    assert "rank is 2" in why_unfit(store, digest, SMALL, max_rank=1)


def test_content_that_cannot_be_read_fits_nothing(tmp_path: Path) -> None:
    store = AdapterStore(tmp_path / "store")
    assert why_unfit(store, "a" * 64, SMALL, max_rank=8).startswith("its files cannot be read")
