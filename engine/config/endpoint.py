"""The ZeroMQ endpoints that an engine may listen on.

The protocol between gateways and engines has no authentication: who can connect submits requests for any tenant, takes
usage records away and unloads adapters. So an endpoint is a socket in a folder, whose mode says who may connect, unless
the operator allows by name what every user of the machine may reach. Other machines never may.
"""

from __future__ import annotations

import re

_IN_A_FOLDER = re.compile(r"ipc://[^@*].*")
_OF_THE_MACHINE = re.compile(r"ipc://@.+|tcp://(localhost|127(\.\d{1,3}){3}|\[::1\]):\d{1,5}")


class BadEndpoint(ValueError):
    """An engine may not listen on this endpoint; the message says why, and does not repeat the endpoint."""


def check_endpoint(endpoint: str, *, is_open: bool) -> None:
    """Check that an engine may listen on an endpoint. is_open: the operator allows what the whole machine can reach.

    Raises BadEndpoint: when it may not.
    """
    if _IN_A_FOLDER.fullmatch(endpoint):
        return
    if _OF_THE_MACHINE.fullmatch(endpoint) is None:
        raise BadEndpoint(
            "Expected ipc://PATH, or tcp://HOST:PORT with localhost, 127.x.x.x or [::1]; only engines on this machine "
            "are supported until the transport is encrypted"
        )
    if not is_open:
        raise BadEndpoint(
            "every user of this machine could use the engine there, without a key; take ipc://PATH, or allow it with "
            "LORIKEET_OPEN_ENDPOINT=true (--open-endpoint true)"
        )
