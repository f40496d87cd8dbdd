"""Network namespaces: a process enters one, and finds there nothing but the addresses that were laid into it."""

from __future__ import annotations

import ctypes
import os

CLONE_NEWNET = 0x40000000
"""The constant of Linux's sched.h."""


def enter(network: str) -> None:
    """Let everything that this process opens from now on be in a network of its own; descriptors that it has stay in
    theirs."""
    namespace = os.open(f"/run/netns/{network}", os.O_RDONLY)
    if ctypes.CDLL(None, use_errno=True).setns(namespace, CLONE_NEWNET):
        raise OSError(ctypes.get_errno(), f"the network {network} cannot be entered")
    os.close(namespace)
