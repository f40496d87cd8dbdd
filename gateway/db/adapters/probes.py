"""Versions that wait for an engine to probe them, and the gateways that do.

A gateway claims a version, leaves signs of life while it probes, and writes down the result. A version whose gateway
died is claimed again soon.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

import msgspec

from gateway.db.adapters.adapters import promote

if TYPE_CHECKING:
    from gateway.db.pool import Connection

MAX_PROBES = 10
"""The most probes of a version that may begin and not finish, after which it is refused: it may kill engines."""


class VersionToProbe(msgspec.Struct, frozen=True, kw_only=True):
    """A version that waits for its probe."""

    organization_id: str
    project_id: str
    adapter_id: str
    name: str
    version: int
    digest: str
    base_digest: str | None
    """The digest of the adapter's base model."""
    num_probes: int
    """The number of probes of the version that were begun so far, this one included."""


class ReadyVersion(msgspec.Struct, frozen=True):
    """A version that answers now."""

    promoted: bool
    """True if the version became the current one."""
    before: int | None
    """The number of the version that was current until now; None where none was."""


# A transaction that claims holds no other lock, and waits for none.
_CLAIM_OLDEST = """
    UPDATE adapter_versions v SET claimed_at = now(), num_probes = v.num_probes + 1
    FROM adapters a JOIN projects p ON p.id = a.project_id
    WHERE a.id = v.adapter_id AND (v.adapter_id, v.version) = (
        SELECT w.adapter_id, w.version FROM adapter_versions w JOIN adapters b ON b.id = w.adapter_id
        WHERE w.state IN ('inspected', 'probed') AND b.removed_at IS NULL
          AND (b.base_digest IS NULL OR b.base_digest = ANY($1::text[]))
          AND (w.claimed_at IS NULL OR w.claimed_at < now() - interval '20 seconds')
        ORDER BY w.claimed_at NULLS FIRST, w.created_at LIMIT 1 FOR UPDATE OF w SKIP LOCKED)
    RETURNING p.organization_id, a.project_id, v.adapter_id, a.name, v.version, v.digest, a.base_digest, v.num_probes
"""


async def claim_oldest(conn: Connection, bases: Collection[str]) -> VersionToProbe | None:
    """Claim the version that has waited longest, of those that nobody probes and that are for one of these bases.

    A version that failed an engine comes later.
    """
    row = await conn.fetchrow(_CLAIM_OLDEST, list(bases))
    return VersionToProbe(**row) if row else None


_CLAIM = """
    UPDATE adapter_versions v SET claimed_at = now(), num_probes = v.num_probes + 1
    FROM adapters a JOIN projects p ON p.id = a.project_id
    WHERE a.id = v.adapter_id AND v.adapter_id = $1 AND v.version = $2 AND v.state IN ('inspected', 'probed')
      AND a.removed_at IS NULL AND (a.base_digest IS NULL OR a.base_digest = ANY($4::text[]))
      AND ($3 OR v.claimed_at IS NULL OR v.claimed_at < now() - interval '20 seconds')
    RETURNING p.organization_id, a.project_id, v.adapter_id, a.name, v.version, v.digest, a.base_digest, v.num_probes
"""


async def claim_version(
    conn: Connection, adapter_id: str, version: int, bases: Collection[str], *, mine: bool
) -> VersionToProbe | None:
    """Claim a version for a probe. mine: the caller added the version, already claimed.

    Return None if the version does not wait any more, is for none of these bases, or somebody else probes it.
    """
    row = await conn.fetchrow(_CLAIM, adapter_id, version, mine, list(bases))
    return VersionToProbe(**row) if row else None


_TOUCH = """
    UPDATE adapter_versions SET claimed_at = now()
    WHERE adapter_id = $1 AND version = $2 AND state IN ('inspected', 'probed')
"""


async def touch_claim(conn: Connection, adapter_id: str, version: int) -> None:
    """Record that a claimed probe still runs. The caller does so every few seconds."""
    await conn.execute(_TOUCH, adapter_id, version)


_RELEASE = """
    UPDATE adapter_versions SET claimed_at = NULL, num_probes = num_probes - CASE WHEN $3 THEN 0 ELSE 1 END
    WHERE adapter_id = $1 AND version = $2
"""


async def release_claim(conn: Connection, adapter_id: str, version: int, *, counts: bool) -> None:
    """Give back the claim of a probe without a result. counts: whether the probe counts as one of `MAX_PROBES`."""
    await conn.execute(_RELEASE, adapter_id, version, counts)


# A claim counts for 20 seconds: one that is older by what is left of them is taken up after the rest.
_DEFER = """
    UPDATE adapter_versions SET num_probes = num_probes - 1,
        claimed_at = now() - interval '20 seconds' + least(greatest(now() - changed_at, '1 second'), '60 seconds')
    WHERE adapter_id = $1 AND version = $2
"""


async def defer_claim(conn: Connection, adapter_id: str, version: int) -> None:
    """Give back the claim of a probe whose engine failed and is still there.

    The probe may be claimed again after a pause as long as it has waited so far, at most a minute: pauses grow, and
    other probes come first. The failed try does not count as a probe.
    """
    await conn.execute(_DEFER, adapter_id, version)


_LOCK = "SELECT current_version FROM adapters WHERE id = $1 AND removed_at IS NULL FOR UPDATE"
_PROBED = """
    UPDATE adapter_versions SET state = 'probed', probe = $3
    WHERE adapter_id = $1 AND version = $2 AND state = 'inspected'
"""
_READY = """
    UPDATE adapter_versions SET state = 'ready', claimed_at = NULL
    WHERE adapter_id = $1 AND version = $2 AND state = 'probed' RETURNING promotion
"""


async def set_ready(conn: Connection, adapter_id: str, version: int, probe: str) -> ReadyVersion | None:
    """Record that a version works, and make it current, if that was ordered and no later order was for another version.

    probe: JSON text. Runs in the caller's transaction. Return None if the probe has ended in another way.
    """
    adapter = await conn.fetchrow(_LOCK, adapter_id)
    if adapter is None:
        return None
    await conn.execute(_PROBED, adapter_id, version, probe)
    ready = await conn.fetchrow(_READY, adapter_id, version)
    if ready is None:
        return None
    promotion = ready["promotion"]
    promoted = promotion is not None and await promote(conn, adapter_id, version, promotion)
    return ReadyVersion(promoted, adapter["current_version"])


_REJECTED = """
    UPDATE adapter_versions SET state = 'rejected', reason = $3, claimed_at = NULL
    WHERE adapter_id = $1 AND version = $2 AND state IN ('inspected', 'probed')
"""


async def set_rejected(conn: Connection, adapter_id: str, version: int, reason: str) -> bool:
    """Record that an engine has refused the version. Return False where its probe has ended otherwise."""
    if await conn.fetchrow(_LOCK, adapter_id) is None:
        return False
    return await conn.execute(_REJECTED, adapter_id, version, reason) != "UPDATE 0"
