"""The bounds that the engine is held to on a CPU, each beside what was measured: PASS or FAIL.

scenario   all of them, in one table
memory     what an engine takes of memory, in a process of its own
"""

from __future__ import annotations

from engine.bench.bounds.scenario import Options, measure

__all__ = ["Options", "measure"]
