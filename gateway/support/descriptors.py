"""The number of files and connections that this process may have open, and the part of them that clients may take."""

from __future__ import annotations

import resource

MAX_DESCRIPTORS = 1 << 20
"""The most file descriptors that this process asks for, even if the system has no bound."""

RESERVED = 256
"""The number of file descriptors kept from clients' connections: for journals, uploads, the database and engines."""


def raise_descriptor_limit() -> None:
    """Let this process open as many files as its hard limit allows.

    The usual soft limit of 1024 is meant for programs that call select(2).
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MAX_DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, MAX_DESCRIPTORS)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def max_connections() -> int:
    """Return the number of connections that clients may have open.

    It is the number of all descriptors less RESERVED, or half of them if there are few.
    """
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    limit = MAX_DESCRIPTORS if soft == resource.RLIM_INFINITY else soft
    return limit - min(RESERVED, limit // 2)
