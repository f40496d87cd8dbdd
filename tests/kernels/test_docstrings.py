"""Every operation that the package announces exists, and its docstring names formula, shapes and source."""

from __future__ import annotations

import importlib
import re

import pytest

import kernels

NAME = re.compile(r"`((?:[cg]pu\.)?\w+)\.(\w+)`(?:, `(\w+)`)?")
SOURCE = re.compile(r"\b(19|20)\d\d\b|`kernels\.")
OPERATIONS = [
    (module, name)
    for row in (kernels.__doc__ or "").splitlines()
    if row.startswith("| ")
    for module, *names in NAME.findall(row)
    for name in names
    if name
]


def test_operations_are_announced() -> None:
    assert len(OPERATIONS) >= 16


@pytest.mark.parametrize(("module", "name"), OPERATIONS, ids=[".".join(each) for each in OPERATIONS])
def test_an_operation_states_its_semantics_shapes_and_source(module: str, name: str) -> None:
    room = importlib.import_module(f"kernels.{module}")
    described = room.__doc__ or ""
    assert "Semantics:" in described or "Semantics, " in described
    assert SOURCE.search(described) or module.endswith("linear")
    operation = getattr(room, name)
    assert "[" in f"{operation.__doc__} {operation.__call__.__doc__}"
