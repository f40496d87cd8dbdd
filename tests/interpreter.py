"""Triton's interpreter without repeated preparations, which take most of its time, and with exact products.

The bits of a product depend on nothing but its row and column, as on a GPU.

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
    """Prepare each module for the interpreter once and for good, and look up each NumPy type once. Imports Triton.

    Until a launch ends, it exchanges everything in `triton.language` for functions that compute on the CPU. The
    interpreter repeats that, for milliseconds, whenever a kernel calls another function of `@triton.jit`, such as
    `tl.sum`. Here a function's first call prepares the module which that function sees; later calls find all as it
    should be.
    """
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
    """Replace a function of `triton.language` by one that computes on the CPU. Imports Triton.

    The replacement does not check at each call that a kernel called it.
    """
    from triton.runtime.interpreter import interpreter_semantic

    function = getattr(member, "__wrapped__", member)

    def of_interpreter(*args: Any, **kwargs: Any) -> Any:
        kwargs["_semantic"] = interpreter_semantic
        return function(*args, **kwargs)

    scope.set_attr(obj, name, of_interpreter)


def _describe_once() -> None:
    """Cache the description of each type and shape. Imports Triton.

    Every value of a kernel has a type and a shape, which Triton describes again for each value, most of the time that
    an interpreted kernel takes. A description is never changed.
    """
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
    """Disable the interpreter's overflow check of every integer sum until the context is left. Imports Triton.

    The checks of sums and products take a quarter of the time of whole models. The kernels' own tests keep them.
    """
    from triton.runtime.interpreter import InterpreterOptions, interpreter_builder

    before = interpreter_builder.options
    interpreter_builder.options = InterpreterOptions(sanitize_overflow=False)
    try:
        yield
    finally:
        interpreter_builder.options = before


def multiply_exactly() -> None:
    """Compute products in twice the digits and round them, so that no order of sums shows. Imports Triton.

    NumPy sums in another order for other numbers of rows, and on other processors. Numbers of 8 bits are rounded to
    nearest, as a GPU does; the interpreter loses what a mantissa carries.
    """
    import torch
    from triton.language import float8e4nv
    from triton.runtime import interpreter
    from triton.runtime.interpreter import InterpreterBuilder, TensorHandle

    convert = interpreter._convert_float

    def convert_rounded(numbers: Any, of: Any, to: Any, rounding: Any) -> Any:
        if to != float8e4nv or of.primitive_bitwidth != 32:
            return convert(numbers, of, to, rounding)
        whole = torch.from_numpy(np.ascontiguousarray(numbers).view(np.float32))
        return whole.to(torch.float8_e4m3fn).view(torch.uint8).numpy().reshape(numbers.shape)

    interpreter._convert_float = convert_rounded

    def factor(handle: TensorHandle) -> Any:
        if handle.dtype.scalar != float8e4nv:
            return handle.data
        return torch.from_numpy(np.ascontiguousarray(handle.data)).view(torch.float8_e4m3fn).float().numpy()

    def create_dot(
        _: InterpreterBuilder, a: TensorHandle, b: TensorHandle, d: TensorHandle, *_precision: object
    ) -> TensorHandle:
        product = np.matmul(factor(a), factor(b), dtype=np.float64).astype(d.data.dtype)
        return TensorHandle(product + d.data, d.dtype.scalar)

    InterpreterBuilder.create_dot = create_dot


if __name__ == "__main__":
    os.environ["TRITON_INTERPRET"] = "1"  # before Triton is imported
    prepare_once()
    del sys.argv[0]
    with overflow_unchecked():
        runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
