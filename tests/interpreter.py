"""Triton's interpreter without what it does again and again, most of the time where there is no GPU; and with products
whose bits depend on nothing but their rows and columns, as those of a GPU do.

`python -m tests.interpreter MODULE ...` runs a module's program so.
"""

from __future__ import annotations

import functools
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
