"""The one way in: content that is here, to a version of an adapter that was seen to work. Uploads, fetched sources and
the watched folder all end here. Knows nothing of HTTP, nor of where the content came from."""

from __future__ import annotations

from pathlib import Path

import msgspec

from gateway.db.adapter_imports import ImportRow


class Taken(msgspec.Struct, frozen=True):
    """What became of an import: the version of an adapter that its content is. changed: whether that is new, or became
    the current one. state: 'ready', or 'inspected' while no engine is there to probe it."""

    adapter_id: str
    version: int
    state: str
    changed: bool


class Intake:
    async def take_in(self, imported: ImportRow, content: Path) -> Taken:
        """Inspect, keep, refer to and probe what an import in the state 'uploaded' brought; its end is recorded on it,
        whatever that is. content: a folder with PEFT's two files, or an archive; the caller deletes it.

        Raises InvalidRequest (code adapter_rejected, every reason) for what is refused, QuotaExceeded, Conflict for a
        project that is archived or an import that was canceled meanwhile.
        """
        raise NotImplementedError
