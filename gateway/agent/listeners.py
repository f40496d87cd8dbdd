"""Listeners: the address on which an engine of this machine listens, and the keys whose holders may connect to it.

The address is decided where the engine starts: free ports and keys are a machine's own.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from pathlib import Path
from typing import Protocol

from gateway.agent.commands import address
from gateway.agent.launcher import LaunchPlace, LaunchRequest
from gateway.support.host import allow_keys, engine_address, host_keys, link_folder


class Listener(Protocol):
    """The way to reach the engines of one machine, and the control over who may reach them."""

    def choose_place(self, ask: LaunchRequest, taken: Collection[int]) -> LaunchPlace:
        """Choose the address on which an engine listens. taken: ports that other engines are about to use.

        Raises OSError: when no port or folder is free.
        """

    def admit(self, public_keys: Iterable[str]) -> None:
        """Allow only the holders of these keys to connect, if engines check keys here."""


class SocketListener:
    """Unix sockets in a folder, for gateways of this machine."""

    def __init__(self, run_dir: Path) -> None:
        self._run_dir = run_dir

    def choose_place(self, ask: LaunchRequest, taken: Collection[int]) -> LaunchPlace:
        """Return the socket of one start of a replica."""
        where = address(self._run_dir, ask.replica_id, ask.generation)
        return LaunchPlace(where, where)

    def admit(self, public_keys: Iterable[str]) -> None:
        """Do nothing: every process that may open the folder may connect."""


class LinkListener:
    """TCP ports guarded by the keys of a data folder, for gateways of other machines.

    host: an address of this machine, or a name by which other machines reach it.
    """

    def __init__(self, host: str, ports: range, data_dir: Path) -> None:
        """Read the keys of the data folder.

        Raises OSError or BadKey: when the keys cannot be read.
        """
        self._host = host
        self._ports = ports
        self._data_dir = data_dir
        self._keys = host_keys(data_dir)

    def choose_place(self, ask: LaunchRequest, taken: Collection[int]) -> LaunchPlace:
        """Return the first free port. Raises OSError: when none is free."""
        where, endpoint = engine_address(self._host, self._ports, taken)
        return LaunchPlace(where, endpoint, str(link_folder(self._data_dir)), self._keys.public)

    def admit(self, public_keys: Iterable[str]) -> None:
        """Write the list of keys whose holders engines allow to connect."""
        allow_keys(self._data_dir, public_keys)
