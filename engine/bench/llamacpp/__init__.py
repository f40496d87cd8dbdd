"""Lorikeet's engine beside llama.cpp, which computes the same model on the same processors, in turns.

scenario   what is measured, and the table
turns      one request or many of the engine, then of llama.cpp
peer       llama.cpp in a process of its own (`xllamacpp`)
gguf       the demo's file in other formats

`Options` and `measure` are those of `scenario`, imported when they are asked for: the peer's process imports this
package, and computes nothing by PyTorch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from engine.bench.llamacpp.scenario import Options, measure

__all__ = ["Options", "measure"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(name)
    from engine.bench.llamacpp import scenario

    return getattr(scenario, name)
