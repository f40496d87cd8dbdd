"""Writes the rows of a benchmark as a table or as JSON lines, as they come, and the facts of the machine.

Knows nothing of the rows' meaning.
"""

from __future__ import annotations

import json
import os
import platform
from importlib.metadata import version
from pathlib import Path
from typing import Any, TextIO

from engine.config import EngineConfig
from engine.hardware import num_threads, resolve_device, resolve_dtype

Row = dict[str, Any]  # every row of a table has the same keys in the same order

COLUMN_WIDTH = 8


class Report:
    """Writes rows as a table or as JSON lines. In a table, a new line of names comes where the rows' keys change."""

    def __init__(self, scenario: str, out: TextIO, *, as_json: bool) -> None:
        self._scenario = scenario
        self._out = out
        self._as_json = as_json
        self._keys: list[str] = []

    def machine(self, facts: Row) -> None:
        """Write the facts of the machine, on one line."""
        if self._as_json:
            self._write(json.dumps({"scenario": self._scenario, "machine": facts}))
        else:
            self._write(", ".join(f"{name} {value}" for name, value in facts.items()))

    def row(self, row: Row) -> None:
        """Write a row; in a table, a line of names comes before it where its keys differ from those of the last row."""
        if self._as_json:
            self._write(json.dumps({"scenario": self._scenario, **row}))
            return
        if list(row) != self._keys:
            self._keys = list(row)
            self._write("")
            self._write("  ".join(_cell(name, name) for name in row))
        self._write("  ".join(_cell(name, value) for name, value in row.items()))

    def _write(self, line: str) -> None:
        self._out.write(line.rstrip() + "\n")
        self._out.flush()


def figure(name: str, value: float, target: str = "") -> Row:
    """Return a row with a figure that is computed from the runs before it.

    target: the bound of the figure in words; "": there is none.
    """
    return {"figure": name, "value": round(value, 3), "target": target}


def machine(config: EngineConfig) -> Row:
    """Return the facts about the machine and the software with which the rows were measured."""
    device = resolve_device(config.device)
    return {
        "processor": _processor(),
        "cores": len(os.sched_getaffinity(0)),
        "threads": num_threads(config.num_threads),
        "device": device.type,
        "dtype": str(resolve_dtype(config.dtype, device)).removeprefix("torch."),
        "model": Path(config.model_dir).name,
        "python": platform.python_version(),
        "torch": version("torch"),
        "transformers": version("transformers"),
    }


def _processor() -> str:
    """Return the processor's model, and the instructions that decide how fast it multiplies, where the system tells."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    named = {key.strip(): value.strip() for key, _, value in (line.partition(":") for line in lines)}
    extensions = [name for name in ("avx512_bf16", "amx_bf16") if name in named.get("flags", "").split()]
    return " ".join([named.get("model name", platform.machine()), *extensions])


def _cell(name: str, value: object) -> str:
    text = f"{value:g}" if isinstance(value, float) and abs(value) < 1 else str(value)
    is_text = name in ("case", "figure", "popularity", "target")
    width = {"case": 26, "figure": 62}.get(name, max(len(name), COLUMN_WIDTH))
    return text.ljust(width) if is_text else text.rjust(width)
