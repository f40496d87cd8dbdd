"""Encryption between gateways and engines over TCP, and the list of allowed keys: CURVE of ZeroMQ.

(rfc.zeromq.org, 26/CURVEZMQ, and 27/ZAP for the list.) Each host has a key pair in a folder of its data folder. An
engine on TCP proves to have its host's secret key, and takes connections of the public keys in the list beside it
alone; the host's agent writes the list. Keys are 40 characters of text (Z85).
"""

from __future__ import annotations

import logging
import re
from pathlib import Path

import msgspec
import zmq
from zmq.utils import z85

SECRET_NAME = "secret"  # noqa: S105 - of a file
"""The file of the host's secret key."""
ALLOWED_NAME = "allowed"
"""The file of the public keys that may connect, one in a line."""

KEY_PATTERN = r"^[0-9a-zA-Z.\-:+=^!/*?&<>()\[\]{}@%$#]{40}$"
"""A key in Z85 (rfc.zeromq.org, 32/Z85)."""

_KEY = re.compile(KEY_PATTERN)
_ZAP = "inproc://zeromq.zap.01"
_DOMAIN = b"lorikeet"
_CURVE = b"CURVE"
_NUM_REQUEST_FRAMES = 7

log = logging.getLogger(__name__)


class BadKey(ValueError):
    """The error for a file of keys that is missing or wrong; the message names it and shows no secret."""


class KeyPair(msgspec.Struct, frozen=True):
    """The keys of one host."""

    public: str
    secret: str


class Peer(msgspec.Struct, frozen=True):
    """The keys with which a client connects to an engine on TCP: its own pair, and the engine's public key."""

    own: KeyPair
    server: str


def read_keys(folder: Path) -> KeyPair:
    """Return the key pair of a host's folder.

    Raises BadKey: when it cannot be read or is no key.
    """
    try:
        secret = (folder / SECRET_NAME).read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise BadKey(f"{folder / SECRET_NAME} cannot be read: {error}") from None
    if not is_key(secret):
        raise BadKey(f"{folder / SECRET_NAME} holds no key of 40 characters")
    return KeyPair(zmq.curve_public(secret.encode()).decode(), secret)


def new_secret() -> str:
    """Return a secret key that nobody else has."""
    return zmq.curve_keypair()[1].decode()


def is_key(text: str) -> bool:
    """Tell whether a text has the form of a key."""
    return _KEY.fullmatch(text) is not None


def connect_as(socket: zmq.Socket[bytes], peer: Peer) -> None:
    """Have a socket that is not connected yet encrypt what it sends, and trust the holder of the server's key alone."""
    socket.curve_serverkey = peer.server.encode()
    socket.curve_publickey = peer.own.public.encode()
    socket.curve_secretkey = peer.own.secret.encode()


class Gate:
    """The access control of an engine's socket: the keys that may connect, as the list in a folder has them now.

    A socket that it guards is bound after the gate was made. `socket` has something to read when somebody connects:
    then `answer` is due.
    """

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], folder: Path) -> None:
        """Read the keys and the list of a folder, and bind the socket at which connections are decided.

        Raises BadKey: when the folder has no key pair or no list.
        """
        self._keys = read_keys(folder)
        self._list = folder / ALLOWED_NAME
        self._allowed: frozenset[str] = frozenset()
        self._version = (0, 0)
        try:
            self._list.stat()
        except OSError as error:
            raise BadKey(f"{self._list} cannot be read: {error}") from None
        self.read_again()
        self.socket = context.socket(zmq.REP)
        self.socket.bind(_ZAP)

    def guard(self, socket: zmq.Socket[bytes]) -> None:
        """Have a socket that is not bound yet take connections of allowed keys alone."""
        socket.curve_server = 1
        socket.curve_secretkey = self._keys.secret.encode()
        socket.zap_domain = _DOMAIN

    def read_again(self) -> bool:
        """Read the list if it has changed; return whether it has."""
        try:
            found = self._list.stat()
            # A list is replaced as a whole: two of one tick of the file system's clock are different files.
            if (version := (found.st_mtime_ns, found.st_ino)) == self._version:
                return False
            lines = self._list.read_text().split()
        except (OSError, UnicodeDecodeError) as error:
            log.warning("the list of allowed keys cannot be read, the one before is used: %s", error)
            return False
        self._version = version
        self._allowed = frozenset(filter(is_key, lines))
        return True

    def allows(self, key: str) -> bool:
        """Tell whether a public key may connect."""
        return key in self._allowed

    def answer(self) -> None:
        """Answer the hosts that ask to connect (27/ZAP)."""
        while self.socket.poll(0):
            frames = self.socket.recv_multipart()
            if len(frames) < _NUM_REQUEST_FRAMES:
                self.socket.send_multipart((b"1.0", b"", b"500", b"malformed request", b"", b""))
                continue
            version, number, domain, address, _, mechanism, *credentials = frames
            self.read_again()
            key = z85.encode(credentials[0]).decode() if mechanism == _CURVE and credentials else ""
            if domain == _DOMAIN and self.allows(key):
                self.socket.send_multipart((version, number, b"200", b"OK", key.encode(), b""))
                continue
            log.warning("refused a connection from %s: its key is not allowed", address.decode(errors="replace"))
            self.socket.send_multipart((version, number, b"400", b"not allowed", b"", b""))

    def close(self) -> None:
        """Stop answering: from now on no new connection is accepted."""
        self.socket.close(linger=0)
