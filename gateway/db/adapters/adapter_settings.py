"""The settings of adapters: values for requests that name none, and whether the adapter stays on the engines."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from adapters.ref import content_key
from gateway.domain.adapters.defaults import Defaults

if TYPE_CHECKING:
    from gateway.db.pool import Connection

_DEFAULTS = msgspec.json.Decoder(Defaults)


class SettingsRow(msgspec.Struct, frozen=True):
    """The settings of one adapter."""

    adapter_id: str
    defaults: Defaults
    pinned: bool


_FIND = """
    SELECT id, defaults, pinned FROM adapters WHERE project_id = $1 AND name = $2 AND removed_at IS NULL
"""


async def find_settings(conn: Connection, project_id: str, name: str) -> SettingsRow | None:
    """Return the settings of a project's adapter; None where there is no such adapter."""
    row = await conn.fetchrow(_FIND, project_id, name)
    return SettingsRow(row["id"], _DEFAULTS.decode(row["defaults"]), row["pinned"]) if row else None


_SET = "UPDATE adapters SET defaults = $2, pinned = $3 WHERE id = $1"


async def set_settings(conn: Connection, settings: SettingsRow) -> None:
    """Store the settings of an adapter."""
    defaults = msgspec.json.encode(settings.defaults).decode()
    await conn.execute(_SET, settings.adapter_id, defaults, settings.pinned)


# The arms of an experiment stay loaded from its start until it is stopped: a cold adapter would make its arm slower.
_PINNED = """
    SELECT a.project_id, v.digest, a.base_digest, a.created_at, a.id
    FROM adapters a JOIN projects p ON p.id = a.project_id
        JOIN adapter_versions v ON v.adapter_id = a.id AND v.version = a.current_version
    WHERE a.pinned AND a.removed_at IS NULL AND p.archived_at IS NULL AND v.state = 'ready'
    UNION ALL
    SELECT a.project_id, v.digest, a.base_digest, a.created_at, a.id
    FROM experiments e JOIN experiment_arms r ON r.experiment_id = e.id JOIN adapters a ON a.id = r.adapter_id
        JOIN projects p ON p.id = a.project_id
        JOIN adapter_versions v ON (v.adapter_id, v.version) = (r.adapter_id, r.version)
    WHERE e.state IN ('running', 'paused') AND NOT r.arm = ANY (e.ended) AND a.removed_at IS NULL
      AND p.archived_at IS NULL AND v.state = 'ready'
    ORDER BY created_at, id
"""


async def list_pinned(conn: Connection) -> list[tuple[str | None, str]]:
    """Return (digest of the base, content key) of each adapter version that engines hold, of any tenant.

    These are the current version of each pinned adapter, and the versions that arms of running and paused experiments
    serve.

    The oldest adapter comes first.
    """
    rows = await conn.fetch(_PINNED)
    return list(dict.fromkeys((row["base_digest"], content_key(row["project_id"], row["digest"])) for row in rows))
