"""Network namespaces: a process enters one, and finds there nothing but the addresses that were laid into it."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from contextlib import contextmanager

CLONE_NEWNET = 0x40000000
"""The flag of Linux's sched.h for a network namespace."""


def enter(network: str) -> None:
    """Move this process into a network namespace; its open descriptors stay in the former one."""
    _move(f"/run/netns/{network}")


@contextmanager
def inside(network: str) -> Iterator[None]:
    """Enter a network namespace in this thread until the context is left; "" changes nothing.

    Unix sockets of the file system reach across networks.
    """
    if not network:
        yield
        return
    here = os.open("/proc/thread-self/ns/net", os.O_RDONLY)
    try:
        enter(network)
        try:
            yield
        finally:
            _move(f"/proc/self/fd/{here}")
    finally:
        os.close(here)


def _move(path: str) -> None:
    """Move this thread into the network namespace of a file. Raises OSError: when it cannot."""
    namespace = os.open(path, os.O_RDONLY)
    try:
        if ctypes.CDLL(None, use_errno=True).setns(namespace, CLONE_NEWNET):
            raise OSError(ctypes.get_errno(), f"the network of {path} cannot be entered")
    finally:
        os.close(namespace)
