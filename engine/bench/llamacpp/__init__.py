"""Lorikeet's engine beside llama.cpp, which computes the same model on the same processors, in turns.

scenario   what is measured, and the table
turns      one request or many of the engine, then of llama.cpp
peer       llama.cpp in a process of its own (`xllamacpp`)
gguf       the demo's file in other formats
"""

from __future__ import annotations

from engine.bench.llamacpp.scenario import Options, measure

__all__ = ["Options", "measure"]
