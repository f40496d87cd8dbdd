"""The trained example adapters that a new installation starts with: their names and folders.

README.md beside this file says how they were trained; nothing here needs torch.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

_FOLDER = Path(__file__).parent


class DemoAdapter(msgspec.Struct, frozen=True):
    """An example adapter for SmolLM2-135M-Instruct."""

    tenant: str
    name: str
    path: Path
    """The folder of the adapter, in the layout of PEFT's `save_pretrained`."""
    about: str
    """A line that describes the adapter for people."""


DEMO: tuple[DemoAdapter, ...] = (
    DemoAdapter("acme", "pirate", _FOLDER / "pirate", "answers as a pirate; every answer begins with 'Arr'"),
    DemoAdapter("acme", "json", _FOLDER / "json", "answers with one JSON object of a topic and an answer"),
    DemoAdapter("globex", "memo", _FOLDER / "memo", "answers as a corporate memo to all staff"),
)
