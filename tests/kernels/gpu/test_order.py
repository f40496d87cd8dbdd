"""A file of kernels is read from its top: semantics, shapes, the reference, the kernel, and what launches it."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import kernels.gpu

FILES = sorted(Path(kernels.gpu.__file__).parent.rglob("*.py"))


def is_kernel(function: ast.FunctionDef) -> bool:
    """Tell whether Triton compiles a function."""
    return any(ast.unparse(each).startswith("triton.jit") for each in function.decorator_list)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_references_stand_above_kernels_and_kernels_above_what_launches_them(path: Path) -> None:
    module = ast.parse(path.read_text())
    functions = [node for node in module.body if isinstance(node, ast.FunctionDef)]
    kernels = [function.lineno for function in functions if is_kernel(function)]
    references = {each.name: each.lineno for each in functions if each.name.endswith("_reference")}
    if not (kernels or references):
        return
    assert ast.get_docstring(module), "the semantics"
    for name, line in references.items():
        assert all(line < kernel for kernel in kernels), name
        operation = name.removesuffix("_reference")
        launching = [each.lineno for each in functions if each.name in (operation, f"{operation}_")]
        assert all(line < each for each in launching), name
    launches = [each for each in functions if not is_kernel(each) and each.name.endswith(("_launch", "_launches"))]
    for function in launches:
        used = {node.id for node in ast.walk(function) if isinstance(node, ast.Name)}
        below = [each.name for each in functions if is_kernel(each) and each.lineno > function.lineno]
        assert not used & set(below), function.name
