"""Two files of the data folder by which whatever supervises an agent sees how the agent is.

`agent.alive` is touched once a second while the agent's loop turns. `agent.ready` is there while every replica of the
host is ready.
"""

from __future__ import annotations

import contextlib
from pathlib import Path

from gateway.support.worker import Worker

ALIVE_NAME = "agent.alive"
READY_NAME = "agent.ready"
TOUCH_S = 1.0
"""Seconds between two touches."""


class Marks(Worker):
    """The files of one agent, of which neither says anything before `start`."""

    def __init__(self, data_dir: Path) -> None:
        super().__init__(self._touch, TOUCH_S, name="agent's sign of life")
        self._alive = data_dir / ALIVE_NAME
        self._ready = data_dir / READY_NAME

    def start(self) -> None:
        """Begin to touch the file of life."""
        self.tell(is_ready=False)  # whatever the former agent said
        super().start()

    async def _touch(self) -> None:
        with contextlib.suppress(OSError):  # a full disk ends no engines
            self._alive.touch(mode=0o600)

    def tell(self, *, is_ready: bool) -> None:
        """Make or remove the file which says that every replica of the host is ready, if the disk allows it."""
        with contextlib.suppress(OSError):
            if is_ready:
                self._ready.touch(mode=0o600)
            else:
                self._ready.unlink(missing_ok=True)
