"""The priority of the server's own process behind a connection, where PostgreSQL runs on this machine.

PostgreSQL has no priorities of its own: on a machine with few processors a report takes the time of everybody's
requests. But each connection has a process of the operating system, whose priority its user may lower. Knows no
queries.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import asyncpg

_IS_OWN = "SELECT inet_server_addr() IS NULL AND pg_backend_pid() = $1"


async def lower_priority(conn: asyncpg.Connection[asyncpg.Record], niceness: int) -> bool:
    """Lower the priority of the server's process behind a connection for as long as the connection lasts.

    Return whether it is lowered. Return False where the server is on another machine, runs as another user, or is
    behind a pooler that shares its processes among clients.

    niceness: the niceness of the process, from 0 to 19.
    """
    pid = conn.get_server_pid()
    return bool(await conn.fetchval(_IS_OWN, pid)) and _lower_priority(pid, niceness)


def _lower_priority(pid: int, niceness: int) -> bool:
    with contextlib.suppress(OSError):  # another user's process, or, in another container, none of that number
        if Path(f"/proc/{pid}/comm").read_text().strip() == "postgres":
            os.setpriority(os.PRIO_PROCESS, pid, max(niceness, os.getpriority(os.PRIO_PROCESS, pid)))
            return True
    return False
