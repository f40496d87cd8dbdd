"""The ZeroMQ endpoints that an engine may listen on.

The protocol between gateways and engines has no authentication of its own: a program that can connect submits requests
for any tenant, takes usage records away and unloads adapters. So an endpoint is a socket in a folder, whose mode says
who may connect, or one on TCP that takes connections of allowed keys alone (`engine.curve`), unless the operator allows
by name what every user of the machine can reach.
"""

from __future__ import annotations

import re

_IN_A_FOLDER = re.compile(r"ipc://[^@*].*")
_GUARDED = re.compile(r"tcp://(\*|[A-Za-z0-9_.-]+|\[[0-9A-Fa-f:.]+\]):\d{1,5}")
_OF_THE_MACHINE = re.compile(r"ipc://@.+|tcp://(localhost|127(\.\d{1,3}){3}|\[::1\]):\d{1,5}")


class BadEndpoint(ValueError):
    """The error for an endpoint on which an engine may not listen.

    The message has the reason, and does not repeat the endpoint.
    """


def check_endpoint(endpoint: str, *, is_open: bool, is_guarded: bool = False) -> None:
    """Check that an engine may listen on an endpoint.

    is_open: the operator allows what the whole machine can reach.
    is_guarded: only allowed keys can connect.

    Raises BadEndpoint: when it may not.
    """
    if _IN_A_FOLDER.fullmatch(endpoint):
        return
    if is_guarded and _GUARDED.fullmatch(endpoint) is not None:
        return
    if _OF_THE_MACHINE.fullmatch(endpoint) is None:
        raise BadEndpoint(
            "Expected ipc://PATH, or tcp://HOST:PORT with localhost, 127.x.x.x or [::1]; only engines on this machine "
            "are reached without keys: those of other hosts are started by their agents, with LORIKEET_LINK_ADDRESS"
        )
    if not is_open:
        raise BadEndpoint(
            "every user of this machine could use the engine there, without a key; take ipc://PATH, or allow it with "
            "LORIKEET_OPEN_ENDPOINT=true (--open-endpoint true)"
        )
