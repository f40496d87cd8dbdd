"""Revisions of pools: a base model with the settings of its engines. A revision never changes its model or settings."""

from __future__ import annotations

import datetime
from collections.abc import Mapping, Sequence
from operator import itemgetter
from typing import TYPE_CHECKING

import msgspec

from gateway.domain.pools.drivers import OWN_DRIVER, Driver
from gateway.domain.pools.states import RevisionState

if TYPE_CHECKING:
    from asyncpg import Record

    from gateway.db.pool import Connection


class RevisionRow(msgspec.Struct, frozen=True):
    """A revision of a pool, and the progress of its preparation."""

    pool_id: str
    revision: int
    model: str
    """The model as the operator named it: `demo`, a folder, a .gguf file, or a repository id of the hub."""
    settings: dict[str, str]
    """Engine settings that differ from those of the hosts, by the names of `EngineConfig`, as texts; or the settings of
    another driver."""
    folder: str | None
    """The folder of the prepared model, the same on each host; None until it is prepared, and where only a server of
    another maker knows the model's files."""
    base_digest: str | None
    """The digest of the base model; None until it is prepared."""
    allow_unfit_adapters: bool
    """True if adapters of the present base that do not fit this one may be left behind."""
    num_bytes: int | None
    """Bytes of memory that a replica takes, estimated when the model was prepared."""
    state: RevisionState
    why: str
    """The reason for a failure, or the progress of the preparation."""
    created_at: datetime.datetime
    changed_at: datetime.datetime
    driver: Driver
    """The driver that speaks to the replicas: `lorikeet` to our own engines."""
    starts_servers: bool
    """True if agents start the servers of another maker."""
    adapters: list[str]
    """The digests of the adapters with which servers are started that take none later."""

    @property
    def is_ours(self) -> bool:
        """Tell whether the replicas are our own engines."""
        return self.driver == OWN_DRIVER

    @property
    def is_managed(self) -> bool:
        """Tell whether agents start and end the replicas: our own engines, or servers of another maker."""
        return self.is_ours or self.starts_servers

    @property
    def engine_settings(self) -> dict[str, str]:
        """The settings of our own engines; none where the replicas are servers of another maker."""
        return self.settings if self.is_ours else {}


_SETTINGS = msgspec.json.Decoder(dict[str, str])
_fields = itemgetter(*RevisionRow.__struct_fields__)

_ADD = """
    INSERT INTO pool_revisions (pool_id, revision, model, settings, allow_unfit_adapters, driver, starts_servers)
    SELECT $1, coalesce(max(revision), 0) + 1, $2, $3::jsonb, $4, $5, $6 FROM pool_revisions WHERE pool_id = $1
    RETURNING *
"""


async def add_revision(
    conn: Connection,
    pool_id: str,
    model: str,
    settings: Mapping[str, str],
    *,
    allow_unfit_adapters: bool = False,
    driver: Driver = OWN_DRIVER,
    starts_servers: bool = False,
) -> RevisionRow:
    """Return the pool's next revision, not prepared yet. The caller's transaction has locked or made the pool.

    starts_servers: as for `RevisionRow`. allow_unfit_adapters: True: the revision may serve a base that some of the
    pool's adapters do not fit.
    """
    texts = msgspec.json.encode(settings).decode()
    row = await conn.fetchrow(_ADD, pool_id, model, texts, allow_unfit_adapters, driver, starts_servers)
    assert row is not None
    return revision_of(row)


_LIST = "SELECT * FROM pool_revisions WHERE pool_id = $1 ORDER BY revision DESC LIMIT $2"


async def list_revisions(conn: Connection, pool_id: str, limit: int = 20) -> list[RevisionRow]:
    """Return the pool's revisions, newest first."""
    return [revision_of(row) for row in await conn.fetch(_LIST, pool_id, limit)]


_LAST_PREPARED = """
    SELECT v.* FROM pool_revisions v JOIN pools p ON p.id = v.pool_id
    WHERE p.organization_id = $1 AND v.model = $2 AND v.folder IS NOT NULL ORDER BY v.created_at DESC LIMIT 1
"""


async def find_prepared(conn: Connection, organization_id: str, model: str) -> RevisionRow | None:
    """Return the latest revision of the organization's pools whose model has this name and was prepared once."""
    row = await conn.fetchrow(_LAST_PREPARED, organization_id, model)
    return revision_of(row) if row else None


_PREPARED = """
    UPDATE pool_revisions SET state = 'prepared', why = '', folder = $3, base_digest = $4, num_bytes = $5,
        adapters = $6::text[]
    WHERE pool_id = $1 AND revision = $2 AND state = 'preparing'
"""


async def set_prepared(
    conn: Connection,
    pool_id: str,
    revision: int,
    *,
    folder: str | None,
    base_digest: str,
    num_bytes: int | None,
    adapters: Sequence[str] = (),
) -> None:
    """Store the folder, digest and estimated memory of a revision's model; the base is registered already.

    folder: None where only a server of another maker knows the model's files. adapters: as for `RevisionRow`.
    num_bytes: the estimated bytes that a replica takes; None: not known.
    """
    await conn.execute(_PREPARED, pool_id, revision, folder, base_digest, num_bytes, list(adapters))


_PROGRESS = "UPDATE pool_revisions SET why = $3 WHERE pool_id = $1 AND revision = $2 AND state = 'preparing'"


async def set_progress(conn: Connection, pool_id: str, revision: int, progress: str) -> None:
    """Store the progress of a revision's preparation, in words."""
    await conn.execute(_PROGRESS, pool_id, revision, progress)


_SET_STATE = "UPDATE pool_revisions SET state = $3, why = $4 WHERE pool_id = $1 AND revision = $2 AND state <> $3"


async def set_revision_state(
    conn: Connection, pool_id: str, revision: int, state: RevisionState, why: str = ""
) -> None:
    """Change a revision's state, with the reason in words.

    revision: the number of the pool's revision. why: the reason; "" for none.
    """
    await conn.execute(_SET_STATE, pool_id, revision, state, why)


_SET_BYTES = """
    UPDATE pool_revisions SET num_bytes = $3
    WHERE pool_id = $1 AND revision = $2 AND folder IS NOT NULL AND num_bytes IS DISTINCT FROM $3
"""


async def set_num_bytes(conn: Connection, pool_id: str, revision: int, num_bytes: int) -> None:
    """Store the estimated memory, in bytes, of a replica of a prepared revision."""
    await conn.execute(_SET_BYTES, pool_id, revision, num_bytes)


_SET_FOLDER = "UPDATE pool_revisions SET folder = $3 WHERE pool_id = $1 AND revision = $2 AND base_digest = $4"


async def set_folder(conn: Connection, pool_id: str, revision: int, folder: str, base_digest: str) -> None:
    """Store the present folder of a prepared revision's model, unless the folder holds another model."""
    await conn.execute(_SET_FOLDER, pool_id, revision, folder, base_digest)


_PREPARE_AGAIN = """
    UPDATE pool_revisions v SET state = 'preparing', why = '' FROM pools p
    WHERE p.id = v.pool_id AND v.revision = p.wanted_revision AND v.state = 'failed'
        AND p.revision IS NULL AND p.removed_at IS NULL
"""


async def prepare_again(conn: Connection) -> None:
    """Mark failed revisions to be prepared again, in pools that have no other revision to serve."""
    await conn.execute(_PREPARE_AGAIN)


def revision_of(row: Record) -> RevisionRow:
    """Return the revision of a database row with all its columns."""
    found = RevisionRow(*_fields(row))
    return msgspec.structs.replace(found, settings=_SETTINGS.decode(row["settings"]))
