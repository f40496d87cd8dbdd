"""The keys for engines on TCP, and the folders of models, with which this machine takes part in the shared pools."""

from __future__ import annotations

import asyncio
import socket
from typing import TYPE_CHECKING

from engine.curve import KeyPair, Peer
from gateway.db.pools.hosts import announce_key
from gateway.db.pools.served import ServedPool
from gateway.settings import Settings
from gateway.support.host import host_id, host_keys
from gateway.support.model_folders import on_this_machine

if TYPE_CHECKING:
    from gateway.db.pool import Connection


class ThisMachine:
    """The keys and model folders of this machine.

    The keys are read or made for the first connection to an engine on TCP.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._keys: KeyPair | None = None

    def peer(self, public_key: str | None) -> Peer | None:
        """Return the keys for a connection to an engine that proves this public key; None if public_key is None.

        Raises OSError: when the key files cannot be read or made.
        Raises BadKey: when a key file is damaged.
        """
        if public_key is None:
            return None
        if self._keys is None:
            self._keys = host_keys(self._settings.data_dir)
        return Peer(self._keys, public_key)

    async def announce(self, conn: Connection) -> None:
        """Write this machine's public key to the database, where the hosts of engines read it.

        Raises OSError: when the key files cannot be read or made.
        Raises BadKey: when a key file is damaged.
        """
        keys = await asyncio.to_thread(host_keys, self._settings.data_dir)
        await announce_key(conn, host_id(self._settings.data_dir), socket.gethostname(), keys.public)

    def with_own_folders(self, served: ServedPool) -> ServedPool:
        """Return a pool whose revisions have the folders that their models have on this machine."""
        return on_this_machine(served, self._settings)
