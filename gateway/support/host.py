"""The id of this host, its keys for engines on TCP (`engine.curve`), and the list of keys that its engines let in."""

from __future__ import annotations

import socket
from collections.abc import Collection, Iterable
from pathlib import Path

from engine.curve import ALLOWED_NAME, SECRET_NAME, KeyPair, new_secret, read_keys
from gateway.db.ids import new_id
from gateway.support.process import make_private, write_private

ID_NAME = "host.id"


def host_id(data_dir: Path) -> str:
    """Return the id of this host, which is stored in its data folder."""
    return make_private(data_dir / ID_NAME, f"{new_id('host')}\n").strip()


def link_folder(data_dir: Path) -> Path:
    """Return the folder of a host's keys."""
    return data_dir / "link"


def host_keys(data_dir: Path) -> KeyPair:
    """Return the key pair of this host, made at the first call.

    Raises OSError: when the file of the keys cannot be read or made.
    Raises BadKey: when the file holds something else.
    """
    make_private(link_folder(data_dir) / SECRET_NAME, f"{new_secret()}\n")
    return read_keys(link_folder(data_dir))


def allow_keys(data_dir: Path, public_keys: Iterable[str]) -> None:
    """Let the holders of these keys connect to the engines of this host, and nobody else. Engines notice at once."""
    path = link_folder(data_dir) / ALLOWED_NAME
    text = "".join(f"{key}\n" for key in sorted(public_keys))
    if not path.exists() or path.read_text() != text:
        write_private(path, text)


def engine_address(host: str, ports: range, taken: Collection[int]) -> tuple[str, str]:
    """Return the address of an engine on TCP and the endpoint that it listens on, with the first free port.

    host: an address of this machine, or a name by which other machines reach it. taken: ports that others are about to
    use.
    Raises OSError: when no port is free.
    """
    is_address = (host.replace(".", "").isdigit() or ":" in host) and _is_free(host, 0)  # else translated on the way
    shown = f"[{host}]" if ":" in host else host
    for port in ports:
        if port not in taken and _is_free(host if is_address else "", port):
            return f"tcp://{shown}:{port}", f"tcp://{shown if is_address else '*'}:{port}"
    raise OSError(f"no port from {ports.start} to {ports.stop - 1} is free (LORIKEET_LINK_PORTS)")


def port_of(address: str) -> int | None:
    """Return the port of an engine's address; None where it is no address on TCP."""
    return int(address.rpartition(":")[2]) if address.startswith("tcp://") else None


def _is_free(host: str, port: int) -> bool:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as probe:
        try:
            probe.bind((host, port))
        except OSError:
            return False
    return True
