"""A system-call filter that leaves a process its memory, its clock and the files that it has open.

Calls that are not on the list (opening files, sockets, processes, signals, limits, users, ...) fail with EPERM; calls
of a foreign instruction set end the process. Needs no privileges. Linux 3.17 and later, x86-64 and AArch64:
https://docs.kernel.org/userspace-api/seccomp_filter.html
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import struct
from collections.abc import Mapping

# Numbers of (x86-64, AArch64): arch/x86/entry/syscalls/syscall_64.tbl and include/uapi/asm-generic/unistd.h of Linux.
ALLOWED = {
    "read": (0, 63),
    "write": (1, 64),
    "pread64": (17, 67),
    "pwrite64": (18, 68),
    "lseek": (8, 62),
    "ftruncate": (77, 46),
    "fstat": (5, 80),
    "newfstatat": (262, 79),  # what fstat is in newer C libraries
    "close": (3, 57),
    "brk": (12, 214),
    "mmap": (9, 222),
    "mremap": (25, 216),
    "munmap": (11, 215),
    "mprotect": (10, 226),
    "madvise": (28, 233),
    "futex": (202, 98),
    "sched_yield": (24, 124),
    "clock_gettime": (228, 113),
    "gettimeofday": (96, 169),
    "getrandom": (318, 278),
    "getpid": (39, 172),
    "rt_sigaction": (13, 134),
    "rt_sigprocmask": (14, 135),
    "rt_sigreturn": (15, 139),
    "restart_syscall": (219, 128),
    "exit": (60, 93),
    "exit_group": (231, 94),
}
# By the machine's name: the column above, and the AUDIT_ARCH_ constant of <linux/audit.h>.
_MACHINES = {"x86_64": (0, 0xC000003E), "aarch64": (1, 0xC00000B7)}

_PR_SET_SECCOMP, _PR_SET_NO_NEW_PRIVS, _MODE_FILTER = 22, 38, 2
_KILL_PROCESS, _ERRNO, _ALLOW = 0x80000000, 0x00050000, 0x7FFF0000
_LOAD_WORD, _JUMP_IF_EQUAL, _RETURN = 0x20, 0x15, 0x06  # classic BPF, <linux/bpf_common.h>
_NUMBER_AT, _ARCH_AT = 0, 4  # in struct seccomp_data


class _Program(ctypes.Structure):
    """The C struct `sock_fprog`: a filter's instructions, and their number."""

    _fields_ = (("length", ctypes.c_ushort), ("instructions", ctypes.c_char_p))


TIMERS = {"setitimer": (38, 103)}
"""The system call by which a process bounds the time of its own work with signals (setitimer(2))."""


def program(machine: str, also: Mapping[str, tuple[int, int]] | None = None) -> bytes:
    """Return the filter in classic BPF, for a machine as `platform.machine` calls it.

    also: further calls that the filter allows.

    Raises OSError: for a machine that is not known.
    """
    if machine not in _MACHINES:
        raise OSError(errno.ENOSYS, f"no system-call filter is written for {machine}")
    column, arch = _MACHINES[machine]
    numbers = [of[column] for of in (ALLOWED | dict(also or {})).values()]
    code = [_instruction(_LOAD_WORD, _ARCH_AT), _instruction(_JUMP_IF_EQUAL, arch, 1, 0)]
    code += [_instruction(_RETURN, _KILL_PROCESS), _instruction(_LOAD_WORD, _NUMBER_AT)]
    # Each comparison jumps over those after it and over the refusal. Calls of x32 have other numbers, and are refused.
    code += [_instruction(_JUMP_IF_EQUAL, number, len(numbers) - at, 0) for at, number in enumerate(numbers)]
    code += [_instruction(_RETURN, _ERRNO | errno.EPERM), _instruction(_RETURN, _ALLOW)]
    return b"".join(code)


def _instruction(code: int, k: int, jump_if_true: int = 0, jump_if_false: int = 0) -> bytes:
    """Return one instruction as a C struct `sock_filter`."""
    return struct.pack("=HBBI", code, jump_if_true, jump_if_false, k)


def install(also: Mapping[str, tuple[int, int]] | None = None) -> None:
    """Put the calling thread, which must be the only one, under the filter for the rest of its life.

    also: as for `program`.

    Raises OSError: when the kernel or the machine has no such filters.
    """
    code = program(platform.machine(), also)
    libc = ctypes.CDLL(None, use_errno=True)
    filter_ = _Program(len(code) // 8, code)
    for arguments in ((_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), (_PR_SET_SECCOMP, _MODE_FILTER, ctypes.byref(filter_), 0, 0)):
        if libc.prctl(*arguments) != 0:
            number = ctypes.get_errno()
            raise OSError(number, f"the kernel takes no system-call filter: {os.strerror(number)}")
