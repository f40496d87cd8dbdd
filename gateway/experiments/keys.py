"""The secrets under which units are digested: one of each project, made when it is needed first and never changed."""

from __future__ import annotations

import secrets

from gateway.db.experiments.keys import insert_key, reseal_key, sealed_key
from gateway.db.pool import Database
from gateway.domain.errors import NotFound
from gateway.support.cipher import Cipher, Place, Sealed

KEY_BYTES = 32
_TABLE = "experiment_keys"


class ProjectKeys:
    """The secrets of all projects, remembered once read: 32 bytes each. A gateway process has one."""

    def __init__(self, database: Database, cipher: Cipher) -> None:
        self._database = database
        self._cipher = cipher
        self._known: dict[str, bytes] = {}

    async def key(self, project_id: str) -> bytes:
        """Return the secret of a project, which is made if there is none.

        Raises NotFound: when the project is purged.
        Raises ContentUnreadable: when this gateway lacks the content key that encrypted the secret.
        Raises one of `gateway.db.pool.FAILURES`: when the database fails.
        """
        known = self._known.get(project_id)
        if known is None:
            known = self._known[project_id] = await self._read(project_id)
        return known

    async def _read(self, project_id: str) -> bytes:
        place = Place(project_id, _TABLE, project_id)
        async with self._database.acquire() as conn:
            found = await sealed_key(conn, project_id)
            if found is None:
                made = self._cipher.seal(secrets.token_bytes(KEY_BYTES), place)
                await insert_key(conn, project_id, made.key_id, made.data)
                found = await sealed_key(conn, project_id)  # of the gateway that came first
                if found is None:
                    raise NotFound("The project is gone.")
            key = self._cipher.open(Sealed(*found), place)
            if found[0] != self._cipher.key_id:
                sealed = self._cipher.seal(key, place)
                await reseal_key(conn, project_id, found[0], sealed.key_id, sealed.data)
        return key
