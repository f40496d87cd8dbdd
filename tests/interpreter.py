"""Triton's interpreter without what it does again and again: two thirds of the time where there is no GPU.

`python -m tests.interpreter MODULE ...` runs a module's program so.
"""

from __future__ import annotations

import os
import runpy
import sys
from typing import Any


def prepare_once() -> None:
    """A launch exchanges everything in `triton.language` for what computes on the CPU, until it ends. The interpreter
    does so anew, for milliseconds, whenever a kernel calls another function of `@triton.jit`, as `tl.sum` is one. Here
    a function's first call prepares, for good, the module which that function sees; the others find all as it should
    be. Imports Triton."""
    from triton.runtime.interpreter import InterpretedFunction

    call = InterpretedFunction.__call__
    prepared: set[InterpretedFunction] = set()

    def call_prepared(function: InterpretedFunction, *args: Any, **kwargs: Any) -> Any:
        if function in prepared:
            return function.rewrite()(*args, **kwargs)
        prepared.add(function)
        return call(function, *args, **kwargs)

    InterpretedFunction.__call__ = call_prepared


if __name__ == "__main__":
    os.environ["TRITON_INTERPRET"] = "1"  # before Triton is imported
    prepare_once()
    del sys.argv[0]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
