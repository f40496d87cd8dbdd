"""The socket that all gateway processes of this machine accept from, and the question whether they are ready."""

from __future__ import annotations

import errno
import http.client
import socket
from typing import TypeVar
from urllib.parse import urlsplit

import msgspec

T = TypeVar("T")

BACKLOG = 2048
PROBE_TIMEOUT_S = 2.0


class PortUnavailable(RuntimeError):
    """The error for an address that cannot be listened on; the message names the setting to change."""


class Listener:
    """A listening socket, bound when the object is made: connections are refused until `listen`.

    Raises PortUnavailable: when the host has no address, or another process has the port.
    """

    def __init__(
        self, host: str, port: int, *, host_setting: str = "LORIKEET_HOST", port_setting: str = "LORIKEET_PORT"
    ) -> None:
        self._host, self._port, self._port_setting = host, port, port_setting
        try:
            found = socket.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        except socket.gaierror as error:
            raise PortUnavailable(f"{host_setting}={host}: {error.strerror}") from None
        family, kind, protocol, _, address = found[0]
        self._socket = socket.socket(family, kind, protocol)
        # Connections of an earlier run that still linger must not keep this one from starting.
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            self._socket.bind(address)
        except OSError as error:
            self._socket.close()
            raise self._unavailable(error) from None

    @property
    def fd(self) -> int:
        """The descriptor of the socket."""
        return self._socket.fileno()

    def listen(self) -> None:
        """Listen: connections queue until a gateway accepts them.

        Raises PortUnavailable: when the address cannot be listened on.
        """
        try:
            self._socket.listen(BACKLOG)
        except OSError as error:
            raise self._unavailable(error) from None

    def close(self) -> None:
        """Close this process's descriptor of the socket; gateways that inherited the socket keep theirs."""
        self._socket.close()

    def _unavailable(self, error: OSError) -> PortUnavailable:
        if error.errno == errno.EADDRINUSE:
            return PortUnavailable(
                f"port {self._port} of {self._host} is in use: choose another with {self._port_setting}"
            )
        return PortUnavailable(f"cannot listen on {self._host} port {self._port}: {error.strerror}")


def is_ready(base_url: str) -> bool:
    """Tell whether GET /health/ready answers 200 now."""
    address = urlsplit(base_url)
    connection = http.client.HTTPConnection(address.hostname or "", address.port, timeout=PROBE_TIMEOUT_S)
    try:
        connection.request("GET", "/health/ready")
        return connection.getresponse().status == 200
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


def engines_in_words(base_url: str, operator_key: str) -> str:
    """Return the number format and the device of the first engine, such as `bfloat16 on cpu`; "" for none."""
    listed = _ask_gateway(base_url, operator_key, "/v1/organization/engines", _Engines) or _Engines()
    return next((f"{engine.dtype} on {engine.device}" for engine in listed.data if engine.dtype and engine.device), "")


def need_not_wait(base_url: str, operator_key: str, model: str) -> bool:
    """Tell whether a base model has a ready engine, or will have none: its pool is drained, has failed or is gone.

    Return False if the gateway does not answer.
    """
    engines = _ask_gateway(base_url, operator_key, "/v1/organization/engines", _Engines)
    if engines is not None and any(engine.model == model and engine.state == "ready" for engine in engines.data):
        return True
    pools = _ask_gateway(base_url, operator_key, "/v1/organization/pools?limit=100", _Pools)
    if pools is None:
        return False
    pool = next((pool for pool in pools.data if pool.name == model), None)
    return pool is None or pool.num_replicas == 0 or pool.state == "failed"


def _ask_gateway(base_url: str, operator_key: str, path: str, kind: type[T]) -> T | None:
    """Return the reply of the admin API to a GET; None if there is none."""
    address = urlsplit(base_url)
    connection = http.client.HTTPConnection(address.hostname or "", address.port, timeout=PROBE_TIMEOUT_S)
    try:
        connection.request("GET", path, headers={"authorization": f"Bearer {operator_key}"})
        response = connection.getresponse()
        return msgspec.json.decode(response.read(), type=kind) if response.status == 200 else None
    except (OSError, http.client.HTTPException, msgspec.DecodeError):
        return None
    finally:
        connection.close()


class _Engine(msgspec.Struct, frozen=True):
    device: str
    dtype: str
    model: str = ""
    state: str = ""


class _Engines(msgspec.Struct, frozen=True):
    data: tuple[_Engine, ...] = ()


class _Pool(msgspec.Struct, frozen=True):
    name: str
    num_replicas: int
    state: str


class _Pools(msgspec.Struct, frozen=True):
    data: tuple[_Pool, ...] = ()
