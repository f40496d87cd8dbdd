"""Content that was accepted for one base is checked against another one by its modules, shapes and rank."""

from __future__ import annotations

from pathlib import Path

import pytest

from adapters.errors import AdapterRejected
from adapters.fit import fit_error
from adapters.report import BaseShape
from adapters.store import AdapterStore
from tests.adapters.folders import CONFIG, HIDDEN, TARGETS, tensor, tensor_name, tensors_of_width, write_adapter

SMALL = BaseShape(TARGETS, 2)
WIDE = BaseShape({"q_proj": (2 * HIDDEN, 2 * HIDDEN)}, 2)


def test_content_fits_a_base_of_its_shapes_and_no_other(tmp_path: Path) -> None:
    store = AdapterStore(tmp_path / "store")
    digest = store.add(write_adapter(tmp_path / "one"))
    wide = store.add(write_adapter(tmp_path / "wide", tensors=tensors_of_width(2 * HIDDEN)))
    assert fit_error(store, digest, SMALL, max_rank=8) == ""
    assert fit_error(store, wide, WIDE, max_rank=8) == ""
    assert fit_error(store, digest, WIDE, max_rank=8) == (
        "layer 0 q_proj: made for (in, out) = (8, 8), the base model has (16, 16)"
    )
    assert fit_error(store, digest, BaseShape({"k_proj": (8, 8)}, 2), max_rank=8) == (
        "layer 0 q_proj: the base model takes no adapter there"
    )
    assert "rank is 2" in fit_error(store, digest, SMALL, max_rank=1)


def adapter_on(folder: Path, module: str, num_ranks: int, **changes: object) -> Path:
    """Write an adapter of rank 2 on one module of layer 0."""
    tensors = {
        tensor_name(0, module, "A"): tensor(num_ranks, HIDDEN),
        tensor_name(0, module, "B"): tensor(HIDDEN, num_ranks),
    }
    return write_adapter(folder, CONFIG | changes, tensors)


def test_an_adapter_on_experts_is_told_what_the_base_lacks(tmp_path: Path) -> None:
    """An adapter for 32 experts fits neither a base with 4 nor one without experts."""
    store = AdapterStore(tmp_path / "store")
    changes = {"target_modules": [], "target_parameters": ["mlp.experts.down_proj"]}
    digest = store.add(adapter_on(tmp_path / "experts", "mlp.experts", 64, **changes))
    parameter = "mlp.experts[{}].down_proj"
    four = BaseShape({parameter.format(4): (HIDDEN, HIDDEN)}, 2)
    assert fit_error(store, digest, four, max_rank=8) == (
        "layer 0 mlp.experts[32].down_proj: made for 32 experts, the base model has 4"
    )
    assert fit_error(store, digest, SMALL, max_rank=8) == (
        "layer 0 mlp.experts[32].down_proj: the base model takes no adapter on experts"
    )
    assert fit_error(store, digest, BaseShape({parameter.format(32): (HIDDEN, HIDDEN)}, 2), max_rank=8) == ""


@pytest.mark.parametrize("module", ["mlp.gate", "mlp.router", "block_sparse_moe.router.layer"])
def test_an_adapter_on_a_router_is_refused_by_the_routers_name(module: str, tmp_path: Path) -> None:
    why = "is a router of experts, on which no adapter is taken"
    store = AdapterStore(tmp_path / "store")
    digest = store.add(adapter_on(tmp_path / "module", module, 2, target_modules=[module]))
    assert fit_error(store, digest, SMALL, max_rank=8) == f"layer 0 {module}: {why}"
    parameters = {"target_modules": [], "target_parameters": [f"{module}.weight"]}
    with pytest.raises(AdapterRejected, match=f"{module}: {why}"):
        store.add(adapter_on(tmp_path / "parameter", module, 2, **parameters))


def test_content_that_cannot_be_read_fits_nothing(tmp_path: Path) -> None:
    store = AdapterStore(tmp_path / "store")
    assert fit_error(store, "a" * 64, SMALL, max_rank=8).startswith("its files cannot be read")
