"""The end of an agent that lets its engines finish what they run.

The host is drained, so that replicas start on other hosts alone, and its own replicas take no new request. A file in
the data folder notes that an agent drained the host and not an operator. The next agent that finds this note uses the
host again.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from gateway.db.pools.hosts import drain_host, list_hosts
from gateway.db.pools.replicas import drain_replicas

if TYPE_CHECKING:
    from gateway.db.pool import Connection

NOTE_NAME = "agent.left"
WHY = "its host stops"


async def leave_host(conn: Connection, host_id: str, data_dir: Path, replica_ids: list[str]) -> None:
    """Drain a host, and let its replicas take no new request.

    replica_ids: all replicas of the host that have not been stopped.

    Raises OSError: when the note that an agent has drained the host cannot be written.
    Raises one of `gateway.db.pool.FAILURES`: when the database fails.
    """
    if not any(each.id == host_id and each.is_drained for each in await list_hosts(conn)):
        (data_dir / NOTE_NAME).touch(mode=0o600)
        await drain_host(conn, host_id, is_drained=True)
    await drain_replicas(conn, replica_ids, WHY)


async def resume_host(conn: Connection, host_id: str, data_dir: Path) -> None:
    """Let replicas start again on a host that the agent before has drained with `leave_host`.

    Raises OSError: when the note that an agent has drained the host cannot be read or removed.
    Raises one of `gateway.db.pool.FAILURES`: when the database fails.
    """
    note = data_dir / NOTE_NAME
    if note.exists():
        await drain_host(conn, host_id, is_drained=False)
        note.unlink()
