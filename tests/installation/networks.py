"""Network namespaces: a process enters one, and finds there nothing but the addresses that were laid into it."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from contextlib import contextmanager

CLONE_NEWNET = 0x40000000
"""The constant of Linux's sched.h."""


def enter(network: str) -> None:
    """Let everything that this process opens from now on be in a network of its own; descriptors that it has stay in
    theirs."""
    _move(f"/run/netns/{network}")


@contextmanager
def inside(network: str) -> Iterator[None]:
    """Let sockets and processes that this thread opens be in a network of its own until the context is left; "" changes
    nothing.

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
    """Move this thread into the network namespace that a file stands for. Raises OSError: when it cannot."""
    namespace = os.open(path, os.O_RDONLY)
    try:
        if ctypes.CDLL(None, use_errno=True).setns(namespace, CLONE_NEWNET):
            raise OSError(ctypes.get_errno(), f"the network of {path} cannot be entered")
    finally:
        os.close(namespace)
