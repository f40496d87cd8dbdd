"""Machines on one machine: network namespaces with an address each, on a bridge of their own, and cuts between two.

A cut is silent: packets of each side go to a station that does not exist, and neither side is notified. Takes root.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager

NOBODY = "02:00:00:00:00:01"
HERE = "here"
"""The station of this process, whose address the bridge itself has."""


class CannotLay(Exception):
    """The error where this machine does not let a test make networks; the message says why."""


class Stations:
    """The stations of one bridge, by name.

    subnet: the beginning of their addresses, by chance, since tests of several checkouts may run at once.
    """

    def __init__(self, number: str, names: Sequence[str]) -> None:
        self.subnet = f"10.{192 + secrets.randbelow(32)}.{secrets.randbelow(256)}"
        self.bridge = f"lkb{number}"
        self._number = number
        self._places = {name: place for place, name in enumerate((HERE, *names), start=1)}

    def address(self, name: str) -> str:
        """Return the address of a station."""
        return f"{self.subnet}.{self._places[name]}"

    def network(self, name: str) -> str:
        """Return the name of a station's network namespace."""
        return f"lorikeet-{self._number}-{name}"

    def lay(self, name: str) -> None:
        """Make the namespace of a station, and its cable to the bridge. Raises CannotLay."""
        network, device = self.network(name), f"lk{self._places[name]}{self._number}"
        ip("netns", "add", network)
        ip("link", "add", device, "type", "veth", "peer", "name", "eth0", "netns", network)
        ip("link", "set", device, "master", self.bridge, "up")
        ip("-n", network, "address", "add", f"{self.address(name)}/24", "dev", "eth0")
        ip("-n", network, "link", "set", "lo", "up")
        ip("-n", network, "link", "set", "eth0", "up")

    @contextmanager
    def cut(self, one: str, *others: str) -> Iterator[None]:
        """Let nothing pass between a station and each of the others until the context is left."""
        with ExitStack() as stack:
            for other in others:
                for here, there in ((one, other), (other, one)):
                    stack.enter_context(self._silenced(here, there))
            yield

    @contextmanager
    def _silenced(self, here: str, there: str) -> Iterator[None]:
        where = () if here == HERE else ("-n", self.network(here))
        entry = (self.address(there), "dev", self.bridge if here == HERE else "eth0")
        ip(*where, "neigh", "replace", *entry, "lladdr", NOBODY, "nud", "permanent")
        try:
            yield
        finally:
            ip(*where, "neigh", "del", *entry)


def ip(*words: str) -> None:
    """Run a command of iproute2. Raises CannotLay."""
    try:
        done = subprocess.run(["ip", *words], capture_output=True, text=True)
    except FileNotFoundError:
        raise CannotLay("the program ip (iproute2) is not installed") from None
    if done.returncode:
        raise CannotLay(f"ip {' '.join(words)}: {done.stderr.strip()}")


@contextmanager
def laid_stations(*names: str) -> Iterator[Stations]:
    """Make a bridge and these stations; remove all of it when the context is left. Raises CannotLay."""
    if os.geteuid():
        raise CannotLay("networks of their own take root")
    stations = Stations(secrets.token_hex(3), names)
    with ExitStack() as stack:
        ip("link", "add", stations.bridge, "type", "bridge")
        stack.callback(_remove, "link", "del", stations.bridge)
        ip("address", "add", f"{stations.address(HERE)}/24", "dev", stations.bridge)
        ip("link", "set", stations.bridge, "up")
        for name in names:
            stack.callback(_remove, "netns", "del", stations.network(name))
            stations.lay(name)
        yield stations


def _remove(*words: str) -> None:
    with contextlib.suppress(CannotLay):
        ip(*words)
