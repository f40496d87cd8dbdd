"""Triton's interpreter without what it does again and again, most of the time where there is no GPU; and with products
whose bits depend on nothing but their rows and columns, as those of a GPU do.

`python -m tests.interpreter MODULE ...` runs a module's program so.
"""

from __future__ import annotations

import functools
import math
import os
import runpy
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np


def prepare_once() -> None:
    """A launch exchanges everything in `triton.language` for what computes on the CPU, until it ends. The interpreter
    does so anew, for milliseconds, whenever a kernel calls another function of `@triton.jit`, as `tl.sum` is one. Here
    a function's first call prepares, for good, the module which that function sees; the others find all as it should
    be. Which type of NumPy's stands for one of Triton's is looked up once for each. Imports Triton."""
    from triton.runtime import interpreter
    from triton.runtime.interpreter import InterpretedFunction

    numpy_type = interpreter._get_np_dtype
    of_number = functools.cache(numpy_type)
    interpreter._get_np_dtype = lambda type: numpy_type(type) if type.scalar.is_ptr() else of_number(type.scalar)

    call = InterpretedFunction.__call__
    prepared: set[InterpretedFunction] = set()

    def call_prepared(function: InterpretedFunction, *args: Any, **kwargs: Any) -> Any:
        if function in prepared:
            return function.rewrite()(*args, **kwargs)
        prepared.add(function)
        return call(function, *args, **kwargs)

    InterpretedFunction.__call__ = call_prepared
    interpreter._patch_attr = _patch_shortly
    _describe_once()


def _patch_shortly(obj: Any, name: str, member: Any, _builder: Any, scope: Any) -> None:
    """Exchange a function of `triton.language` for one that computes on the CPU, without a check at each of its calls
    that it was called by a kernel. Imports Triton."""
    from triton.runtime.interpreter import interpreter_semantic

    function = getattr(member, "__wrapped__", member)

    def of_interpreter(*args: Any, **kwargs: Any) -> Any:
        kwargs["_semantic"] = interpreter_semantic
        return function(*args, **kwargs)

    scope.set_attr(obj, name, of_interpreter)


def _describe_once() -> None:
    """Every value of a kernel has a type and a shape, which Triton describes anew for each value, most of the time that
    an interpreted kernel takes. Here each shape is described once; a description is never changed. Imports Triton."""
    from triton.language import core
    from triton.language.semantic import TritonSemantic

    describe_block = core.block_type.__init__
    blocks: dict[tuple[str, tuple[int, ...]], tuple[core.tuple, int, str]] = {}
    shapes: dict[tuple[int, ...], tuple[core.tuple, core.constexpr]] = {}
    of_scalar = core.tuple([]), core.constexpr(1)

    def describe_block_once(block: core.block_type, element_ty: core.dtype, shape: Any) -> None:
        sizes = tuple([size.value if type(size) is core.constexpr else size for size in shape])
        known = blocks.get((element_ty.name, sizes))
        if known is None:
            describe_block(block, element_ty, shape)
            blocks[element_ty.name, sizes] = block.shape, block.numel, block.name
            return
        block.element_ty = element_ty
        block.shape, block.numel, block.name = known

    def describe_tensor(tensor: core.tensor, handle: Any, type: core.dtype) -> None:
        tensor.handle, tensor.type, tensor.dtype = handle, type, type.scalar
        if not type.is_block():
            tensor.shape, tensor.numel = of_scalar
            return
        sizes = tuple(type.shape.values)
        known = shapes.get(sizes)
        if known is None:
            known = core.tuple([core.constexpr(size) for size in sizes]), core.constexpr(math.prod(sizes))
            shapes[sizes] = known
        tensor.shape, tensor.numel = known

    broadcast = TritonSemantic.broadcast_impl_value

    def broadcast_others(semantic: TritonSemantic[Any], one: core.tensor, other: core.tensor) -> Any:
        if one.shape is other.shape:
            return one, other
        return broadcast(semantic, one, other)

    compare_types, compare_shapes = core.dtype.__eq__, core.tuple.__eq__

    def is_same_type(one: core.dtype, other: Any) -> bool:
        return True if one is other else bool(compare_types(one, other))

    def is_same_shape(one: core.tuple, other: Any) -> core.constexpr:
        values = other.values if type(other) is core.tuple else other
        if type(values) is list and all(type(size) is int for size in values):
            return core.constexpr(one.values == values)
        return compare_shapes(one, other)

    TritonSemantic.broadcast_impl_value = broadcast_others
    core.block_type.__init__ = describe_block_once
    core.tensor.__init__ = describe_tensor
    core.dtype.__eq__ = is_same_type
    core.tuple.__eq__ = is_same_shape


@contextmanager
def overflow_unchecked() -> Iterator[None]:
    """Compute as compiled kernels do, without a check of every sum and product of integers, a quarter of the time: for
    whole models. The kernels' own tests keep it. Imports Triton."""
    from triton.runtime.interpreter import InterpreterOptions, interpreter_builder

    before = interpreter_builder.options
    interpreter_builder.options = InterpreterOptions(sanitize_overflow=False)
    try:
        yield
    finally:
        interpreter_builder.options = before


def multiply_exactly() -> None:
    """NumPy sums in another order for other numbers of rows, and on other processors; rounded from twice the digits, no
    order shows. Imports Triton."""
    from triton.runtime.interpreter import InterpreterBuilder, TensorHandle

    def create_dot(
        _: InterpreterBuilder, a: TensorHandle, b: TensorHandle, d: TensorHandle, *_precision: object
    ) -> TensorHandle:
        product = np.matmul(a.data, b.data, dtype=np.float64).astype(d.data.dtype)
        return TensorHandle(product + d.data, d.dtype.scalar)

    InterpreterBuilder.create_dot = create_dot


if __name__ == "__main__":
    os.environ["TRITON_INTERPRET"] = "1"  # before Triton is imported
    prepare_once()
    del sys.argv[0]
    with overflow_unchecked():
        runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
