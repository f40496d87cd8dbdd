"""Machines on one machine: network namespaces with an address each, on a bridge of their own, and cuts between two.

The bridge is in a namespace too, the hub: a browser that a test drives on this machine cuts its connections off when
an interface of the machine appears or goes. A cut is silent: packets of each side go to a station that does not exist,
and neither side is notified. Takes root.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager

NOBODY = "02:00:00:00:00:01"
HUB = "hub"
"""The name of the station whose device is the bridge itself."""
DEVICE = "eth0"
"""The name of the network device of each station."""


class CannotLay(Exception):
    """The error for a machine on which tests may not create networks; the message has the reason."""


class Stations:
    """The network namespaces on one bridge, by name.

    subnet: the beginning of their addresses, by chance, since tests of several checkouts may run at once.
    """

    def __init__(self, number: str, names: Sequence[str]) -> None:
        self.subnet = f"10.{192 + secrets.randbelow(32)}.{secrets.randbelow(256)}"
        self._number = number
        self._places = {name: place for place, name in enumerate((HUB, *names), start=1)}

    def address(self, name: str) -> str:
        """Return the address of a station."""
        return f"{self.subnet}.{self._places[name]}"

    def network(self, name: str) -> str:
        """Return the name of a station's network namespace."""
        return f"lorikeet-{self._number}-{name}"

    def lay(self, name: str) -> None:
        """Create the network namespace of a station, and its cable to the bridge; for the hub, the bridge itself.

        Raises CannotLay: when a command fails.
        """
        network, hub = self.network(name), self.network(HUB)
        ip("netns", "add", network)
        if name == HUB:
            ip("-n", hub, "link", "add", DEVICE, "type", "bridge")
        else:
            ip("-n", hub, "link", "add", "name", name, "type", "veth", "peer", "name", DEVICE, "netns", network)
            ip("-n", hub, "link", "set", "dev", name, "master", DEVICE, "up")
        ip("-n", network, "address", "add", f"{self.address(name)}/24", "dev", DEVICE)
        ip("-n", network, "link", "set", "lo", "up")
        ip("-n", network, "link", "set", DEVICE, "up")

    @contextmanager
    def cut(self, one: str, *others: str) -> Iterator[None]:
        """Drop all packets between a station and each of the others until the context is left."""
        with ExitStack() as stack:
            for other in others:
                for here, there in ((one, other), (other, one)):
                    stack.enter_context(self._silenced(here, there))
            yield

    @contextmanager
    def _silenced(self, here: str, there: str) -> Iterator[None]:
        entry = (self.address(there), "dev", DEVICE)
        ip("-n", self.network(here), "neigh", "replace", *entry, "lladdr", NOBODY, "nud", "permanent")
        try:
            yield
        finally:
            ip("-n", self.network(here), "neigh", "del", *entry)


def ip(*words: str) -> None:
    """Run a command of iproute2.

    Raises CannotLay: when iproute2 is not installed or the command fails.
    """
    try:
        done = subprocess.run(["ip", *words], capture_output=True, text=True)
    except FileNotFoundError:
        raise CannotLay("the program ip (iproute2) is not installed") from None
    if done.returncode:
        raise CannotLay(f"ip {' '.join(words)}: {done.stderr.strip()}")


@contextmanager
def laid_stations(*names: str) -> Iterator[Stations]:
    """Make the hub and these stations; remove all of it when the context is left.

    Raises CannotLay: when the process is not root's, or a command fails.
    """
    if os.geteuid():
        raise CannotLay("networks of their own take root")
    stations = Stations(secrets.token_hex(3), names)
    with ExitStack() as stack:
        for name in (HUB, *names):
            stack.callback(_remove, "netns", "del", stations.network(name))
            stations.lay(name)
        yield stations


def _remove(*words: str) -> None:
    with contextlib.suppress(CannotLay):
        ip(*words)
