"""The states of revisions and replicas, as the database has them, and names of pools."""

from __future__ import annotations

import re
from typing import Literal

RevisionState = Literal["preparing", "prepared", "failed", "retired"]
"""The states of a revision.

preparing: the model is being fetched and prepared.
prepared: engines can be started.
failed: no engine could be started, or none answered.
retired: another revision has taken its place."""

ReplicaState = Literal["starting", "loading", "ready", "draining", "stopped", "failed"]
"""The states of a replica.

starting: the replica waits to be started.
loading: the replica's process runs, and reads the model or does not answer any more.
ready: the replica takes requests.
draining: the replica takes no new request and stops once the running ones have ended.
stopped: the replica has ended for good.
failed: the process ended by itself; it is started again at `retry_at`."""

Access = Literal["all", "listed"]
"""The projects that may use a pool: all of the installation, or those that are listed."""

MAX_NAME_CHARS = 128
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]*(?:/[A-Za-z0-9._+-]+)*")


def check_pool_name(name: str) -> None:
    """Check that a text may be the name of a pool.

    Names stand before `:` and `@` in model strings, and in paths of the admin API.

    Raises ValueError: when no pool may have the name; the message is the reason.
    """
    if ":" in name or "@" in name:
        raise ValueError("The name of a pool holds no ':' and no '@'.")
    if len(name) > MAX_NAME_CHARS:
        raise ValueError(f"The name of a pool has at most {MAX_NAME_CHARS} characters.")
    if _NAME.fullmatch(name) is None:
        raise ValueError(
            "The name of a pool begins with a letter or digit and holds letters, digits, '.', '_', '+', '-' and, "
            "between two of these, '/'."
        )
