"""Encrypts stored secrets with the content key that encrypts now.

The secrets are seeds of authenticators, webhooks' secrets and object stores' keys: some are in clear, from versions
that did not encrypt them, and some are encrypted with a former key. Keys of foreign servers are encrypted again when
they are read.
"""

from __future__ import annotations

from gateway.db.content.secrets import replace_secret, secrets_of_other_keys
from gateway.db.pool import Database
from gateway.domain.errors import ContentUnreadable
from gateway.support.secrets import Secrets


async def reseal(database: Database, secrets: Secrets) -> int:
    """Encrypt with this gateway's key all secrets that are in clear or encrypted with another key; return their number.

    A secret that cannot be read stays as it is, and is logged. Several gateways may do this at the same time.

    Raises one of `gateway.db.pool.FAILURES`: when the database fails.
    """
    num_sealed = 0
    async with database.acquire() as conn:
        for row in await secrets_of_other_keys(conn, secrets.key_id):
            try:
                clear = secrets.open(row.content_key, row.secret, row.column, row.organization_id, row.owner)
            except ContentUnreadable:
                continue
            sealed = secrets.seal(clear, row.column, row.organization_id, row.owner)
            await replace_secret(conn, row, sealed.key_id, sealed.data)
            num_sealed += 1
    return num_sealed
